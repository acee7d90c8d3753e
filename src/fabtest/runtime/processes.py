"""Daemons of a lab: starting them inside a namespace, finding everything that belongs to a lab, ending it.

A process belongs to a lab if it runs in one of the lab's network namespaces or carries the lab's mark in its
environment; nothing else is ever ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fabtest.errors import MachineError
from fabtest.runtime.namespaces import inside
from fabtest.runtime.priority import set_nice
from fabtest.runtime.state import ROOT

#: In the environment of a lab's processes; no name a user would export.
MARK = "_FABTEST_PROCESS_OF"
_FRR_SCRATCH = Path("/var/tmp/frr")


@dataclass(frozen=True, slots=True)
class Process:
    """A running process."""

    pid: int
    name: str


def program(name: str, package: str) -> str:
    """The path of a program, looked for where Debian keeps daemons too. Raises MachineError naming its package."""
    found = shutil.which(name, path=f"/usr/lib/frr:{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin")
    if not found:
        raise MachineError(f"{name} is not installed", hint=f"apt-get install {package}, or use ./inv, which does")
    return found


def spawn(argv: Sequence[str], *, lab: str, log: Path, netns: Path | None = None) -> int:
    """Start a daemon in a session of its own, marked with its lab, output to ``log``; its pid."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", MARK: lab, "LC_ALL": "C.UTF-8"}
    with open(log, "ab") as out:
        options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, "start_new_session": True}
        if netns is None:
            child = subprocess.Popen(argv, env=environment, cwd="/", **options)  # type: ignore[call-overload]
        else:
            with inside(netns):
                child = subprocess.Popen(argv, env=environment, cwd="/", **options)  # type: ignore[call-overload]
    _children[child.pid] = child
    return int(child.pid)


#: Children of this process, kept so that they are reaped and not warned about.
_children: dict[int, subprocess.Popen[bytes]] = {}


def reap() -> None:
    """Collect children that ended."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            del _children[pid]


def ended(pid: int) -> bool:
    """Whether a process that was spawned here has ended."""
    child = _children.get(pid)
    return child is not None and child.poll() is not None


def forget_children() -> None:
    """Daemons outlive the command that started them."""
    for child in _children.values():
        child.returncode = 0
    _children.clear()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def belongs(pid: int, lab: str) -> bool:
    """Whether a live process carries the lab's mark, and keeps its files where we do: a lab of the same name in a
    container, whose processes show here, is not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            marked = f"{MARK}={lab}".encode() in environ.read().split(b"\0")
    except OSError:
        return False
    return marked and alive(pid) and _identity(f"/proc/{pid}/root{ROOT}") == _identity(str(ROOT))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def settle(lab: str, folders: Iterable[Path]) -> None:
    """A lab's daemons, by the pid files in their folders, no longer yield to others: the fabric is up."""
    for folder in folders:
        for file in folder.glob("*.pid"):
            try:
                pid = int(file.read_text())
            except (OSError, ValueError):
                continue  # the daemon is starting, or ended
            if belongs(pid, lab):
                set_nice(pid, 0)


def of_lab(lab: str, namespaces: Iterable[Path]) -> list[Process]:
    """Every live process of a lab, but the caller."""
    inodes = set()
    for path in namespaces:
        try:
            inodes.add(f"net:[{os.stat(path).st_ino}]")
        except OSError:
            continue
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            ours = bool(inodes) and os.readlink(f"/proc/{entry.name}/ns/net") in inodes
            ours = ours or belongs(int(entry.name), lab)
            if ours and alive(int(entry.name)):
                with open(f"/proc/{entry.name}/comm") as comm:
                    found.append(Process(int(entry.name), comm.read().strip()))
        except OSError:
            continue
    return found


def end(processes: Iterable[Process], *, gently: Collection[int] = (), timeout: float = 60.0) -> None:
    """Kill processes and wait until they are gone; the pids in ``gently`` get SIGTERM and 3 s first, meanwhile."""
    left = list(processes)
    for p in left:
        _signal(p.pid, signal.SIGTERM if p.pid in gently else signal.SIGKILL)
    start = time.monotonic()
    patient = True
    while left:
        time.sleep(0.005)
        reap()
        left = [p for p in left if alive(p.pid)]
        waited = time.monotonic() - start
        if left and patient and waited > 3:
            patient = False
            for p in left:
                _signal(p.pid, signal.SIGKILL)
        if left and waited > timeout:
            names = ", ".join(f"{p.name} ({p.pid})" for p in left[:5])
            raise MachineError(f"processes do not end: {names}", hint="they hang in the kernel; a reboot ends them")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def remove_frr_scratch(processes: Iterable[Process]) -> None:
    """FRR keeps crash logs below /var/tmp/frr/<daemon>.<pid>; a killed daemon leaves them."""
    for p in processes:
        shutil.rmtree(_FRR_SCRATCH / f"{p.name}.{p.pid}", ignore_errors=True)
