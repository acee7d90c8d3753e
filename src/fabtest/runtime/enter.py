"""``python -m fabtest.runtime.enter NETNS FOLDER -- ARGV``: become a command inside a node.

The command sees the node's network and, in a mount namespace of its own, the files a SONiC switch has at their usual
places: /etc/sonic, /etc/frr, /run/frr (so plain ``vtysh`` works) and /run/redis. Where the machine has no such
folder, an overlay that only the command sees makes room for it; nothing is created on the machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fabtest.runtime.namespaces import CLONE_NEWNET, CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount, setns, unshare


def enter(netns: str, folder: Path, argv: list[str]) -> None:
    """Replace this process by ``argv`` inside the node; exit 127 if there is no such program."""
    handle = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    setns(handle, CLONE_NEWNET)
    unshare(CLONE_NEWNS)
    mount(None, "/", None, MS_SLAVE | MS_REC)
    mount("node", "/sys", "sysfs", 0)
    if (folder / "run").is_dir():
        _lay_out(folder)
    os.environ["FABTEST_NODE"] = folder.name
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _lay_out(folder: Path) -> None:
    """The switch's folders at SONiC's places."""
    sources = {
        "/etc/sonic": os.open(folder, os.O_PATH | os.O_CLOEXEC),
        "/etc/frr": os.open(folder, os.O_PATH | os.O_CLOEXEC),
        "/run/frr": os.open(folder / "run", os.O_PATH | os.O_CLOEXEC),
        "/run/redis": os.open(folder, os.O_PATH | os.O_CLOEXEC),
    }
    missing = [Path(target) for target in sources if not os.path.isdir(target)]
    scratch = folder / "scratch"
    if missing and scratch.is_dir():
        mount("tmpfs", str(scratch), "tmpfs", 0)
        # /run last: it covers the scratch folder itself.
        for parent in sorted({target.parent for target in missing}):
            upper, work = scratch / f"{parent.name}-upper", scratch / f"{parent.name}-work"
            for path in (upper, work, *(upper / target.name for target in missing if target.parent == parent)):
                path.mkdir()
            try:
                mount("overlay", str(parent), "overlay", 0, f"lowerdir={parent},upperdir={upper},workdir={work}")
            except OSError:
                continue  # a kernel without overlayfs: that place stays empty
    for target, handle in sources.items():
        if os.path.isdir(target):
            # By descriptor: the path itself may have just been covered.
            mount(f"/proc/self/fd/{handle}", target, None, MS_BIND)


if __name__ == "__main__":
    split = sys.argv.index("--")
    try:
        enter(sys.argv[1], Path(sys.argv[2]), sys.argv[split + 1 :])
    except OSError as failure:
        print(f"fabtest: cannot enter {Path(sys.argv[2]).name}: {failure}", file=sys.stderr)
        sys.exit(5)
