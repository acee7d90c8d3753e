"""Network namespaces: making, naming, entering. The name is the lab's mark: ``fabtest.<lab>.<node>``.

Sockets opened while a thread is inside a namespace stay in it; so does a process started there. Nothing has to be
installed in a node. The same calls enter a container through ``/proc/<pid>/ns/net``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fabtest.errors import LabError, MachineError

NETNS_DIR = Path("/run/netns")
PREFIX = "fabtest"
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 4096, 16384, 1 << 19, 1 << 20
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def namespace_name(lab: str, node: str) -> str:
    """The name of a node's namespace; lab and node are host names, so it is safe in a path."""
    return f"{PREFIX}.{lab}.{node}"


def namespace_path(lab: str, node: str) -> Path:
    """Where a node's namespace is bound."""
    return NETNS_DIR / namespace_name(lab, node)


def lab_of(name: str) -> str | None:
    """The lab a namespace name belongs to, or None if it is not ours."""
    parts = name.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == PREFIX else None


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    encoded = [x.encode() if x else None for x in (source, target, kind)]
    data = options.encode() if options else None
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {target}")


def setns(handle: int, kind: int) -> None:
    """setns(2), for the calling thread."""
    _check(_libc.setns(handle, kind), "setns")


def unmount(target: str) -> None:
    """umount2(2), lazily."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    """unshare(2), for the calling thread."""
    _check(_libc.unshare(flags), "unshare")


@contextmanager
def inside(netns: str | os.PathLike[str]) -> Iterator[None]:
    """The calling thread in another network namespace, and back. Raises LabError if there is none."""
    try:
        target = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise LabError(f"no network namespace at {netns}", hint="is the lab up? see `lab-list`") from None
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(target, CLONE_NEWNET), f"setns {netns}")
        try:
            yield
        finally:
            _check(_libc.setns(home, CLONE_NEWNET), "setns back")
    finally:
        os.close(target)
        os.close(home)


def require_root() -> None:
    """Raises MachineError unless the caller is root."""
    if os.geteuid() != 0:
        raise MachineError("labs need root", hint="run it with sudo, or through ./inv, which does")


def prepare() -> None:
    """/run/netns as iproute2 sets it up, so that ``ip netns`` sees our namespaces. Raises MachineError."""
    require_root()
    NETNS_DIR.mkdir(parents=True, exist_ok=True)
    try:
        mount(None, str(NETNS_DIR), None, MS_SHARED | MS_REC)
    except OSError:
        try:
            mount(str(NETNS_DIR), str(NETNS_DIR), None, MS_BIND | MS_REC)
            mount(None, str(NETNS_DIR), None, MS_SHARED | MS_REC)
        except OSError as error:
            raise MachineError(f"cannot mount {NETNS_DIR}: {error.strerror}", hint="a container must be privileged")


def create(lab: str, node: str) -> None:
    """A new namespace, bound to its name. The calling thread ends where it was."""
    path = namespace_path(lab, node)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(CLONE_NEWNET)
        try:
            mount("/proc/thread-self/ns/net", str(path), None, MS_BIND)
        finally:
            _check(_libc.setns(home, CLONE_NEWNET), "setns back")
    finally:
        os.close(home)


def remove(name: str) -> None:
    """Unbind a namespace of ours by file name; the kernel frees it with its last process and socket."""
    path = NETNS_DIR / name
    while True:
        try:
            unmount(str(path))
        except OSError:
            break
    path.unlink(missing_ok=True)


def existing() -> dict[str, list[str]]:
    """Lab -> file names of its namespaces on this machine."""
    found: dict[str, list[str]] = {}
    if NETNS_DIR.is_dir():
        for entry in os.scandir(NETNS_DIR):
            lab = lab_of(entry.name)
            if lab is not None:
                found.setdefault(lab, []).append(entry.name)
    return found


def write_sysctls(values: dict[str, int | str]) -> list[str]:
    """Set sysctls of the namespace the thread is in; returns those the kernel does not have."""
    missing = []
    for key, value in values.items():
        path = "/proc/sys/" + key.replace(".", "/")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            missing.append(key)
            continue
        try:
            os.write(handle, str(value).encode())
        except OSError:
            missing.append(key)
        finally:
            os.close(handle)
    return missing
