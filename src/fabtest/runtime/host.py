"""The one setting of the machine itself that a large lab needs: room for its neighbours.

``net.ipv4.neigh.default.gc_thresh3`` (and IPv6's) bounds the ARP and ND entries of *all* namespaces together, 1024 by
default (Documentation/networking/ip-sysctl.rst). A lab of a hundred switches needs more; without them neighbours
fail and sessions never come up. The limit is raised when a lab needs it and put back when the last lab goes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from fabtest.model import Fabric

log = logging.getLogger(__name__)
_SYSCTL = Path("/proc/sys/net")
_NAMES = tuple(f"{family}/neigh/default/gc_thresh{n}" for family in ("ipv4", "ipv6") for n in (1, 2, 3))


def _read(name: str) -> int | None:
    try:
        return int((_SYSCTL / name).read_text())
    except (OSError, ValueError):
        return None


def neighbours_needed(fabric: Fabric) -> int:
    """Both ends of every link know each other; twice that, since entries linger."""
    return 4 * len(fabric.links)


def make_room(fabric: Fabric, memory: Path) -> None:
    """Raise the limits if the fabric needs it; what they were before the first raise is kept in ``memory``.

    Where the limits cannot be seen or set (a container with a network of its own) this warns and goes on.
    """
    need = neighbours_needed(fabric)
    for family in ("ipv4", "ipv6"):
        names = [n for n in _NAMES if n.startswith(family)]
        now = [_read(n) for n in names]
        top = now[-1]
        if top is None:
            if need > 1024 and family == "ipv4":
                log.warning("this fabric needs %d neighbour entries; the machine's limit cannot be seen here", need)
            continue
        if top >= 2 * need:
            continue
        if not memory.is_file():
            memory.write_text(json.dumps({n: v for n in _NAMES if (v := _read(n)) is not None}))
        try:
            for name, value in zip(names, (need, need, 2 * need), strict=True):
                (_SYSCTL / name).write_text(str(value))
        except OSError:
            log.warning("cannot raise net.%s from %d: neighbours may overflow", names[-1].replace("/", "."), top)


def give_back(memory: Path) -> None:
    """Put the limits back; the file goes."""
    try:
        before = json.loads(memory.read_text())
    except (OSError, ValueError):
        before = {}
    for name in _NAMES:
        if isinstance(before.get(name), int):
            try:
                (_SYSCTL / name).write_text(str(before[name]))
            except OSError:
                continue
    memory.unlink(missing_ok=True)
