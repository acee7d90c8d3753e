"""``python -m fabtest.runtime.enter NETNS FOLDER -- ARGV``: become a command inside a node.

The command sees the node's network and, in a mount namespace of its own, the files a SONiC switch has at their usual
places: /etc/sonic, /etc/frr, /run/frr (so plain ``vtysh`` works) and /run/redis. Lazily imported parts only, since
this runs for every ``lab-exec``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fabtest.runtime.namespaces import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    MS_BIND,
    MS_REC,
    MS_SLAVE,
    _check,
    _libc,
    mount,
    unshare,
)


def enter(netns: str, folder: Path, argv: list[str]) -> None:
    """Replace this process by ``argv`` inside the node; exit 127 if there is no such program."""
    handle = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc.setns(handle, CLONE_NEWNET), "setns")
    unshare(CLONE_NEWNS)
    mount(None, "/", None, MS_SLAVE | MS_REC)
    mount("node", "/sys", "sysfs", 0)
    if (folder / "run").is_dir():
        scratch = Path("/run")
        for target, source in (
            ("/etc/sonic", folder),
            ("/etc/frr", folder),
            ("/run/frr", folder / "run"),
            ("/run/redis", folder),
        ):
            path = Path(target)
            if not path.is_dir():
                if path.parent == scratch or not path.parent.is_dir():
                    continue
                continue
            mount(str(source), target, None, MS_BIND)
    os.environ["FABTEST_NODE"] = folder.name
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    split = sys.argv.index("--")
    enter(sys.argv[1], Path(sys.argv[2]), sys.argv[split + 1 :])
