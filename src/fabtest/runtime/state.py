"""A lab's folder and its lock, below /run/fabtest: gone after a reboot, as the lab itself is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fabtest.errors import LabError, UsageError
from fabtest.model import Fabric
from fabtest.topology.units import NAME

ROOT = Path("/run/fabtest")
#: What the machine's limits were before a lab raised them.
HOST_LIMITS = ROOT / ".host-limits.json"


@dataclass(slots=True)
class LabRecord:
    """``lab.json``: what was asked for, and how far it got."""

    name: str
    topology: str
    state: str
    since: str
    runtime: str
    switches: int
    servers: int


class LabFolder:
    """The paths of one lab."""

    def __init__(self, name: str) -> None:
        if not NAME.match(name):
            raise UsageError(
                f"{name!r} is not a lab name",
                hint="lower-case letters, digits and inner hyphens, at most 32 characters",
            )
        self.name = name
        self.path = ROOT / name

    @property
    def topology(self) -> Path:
        """The topology file the lab was made from."""
        return self.path / "topology.yml"

    @property
    def nodes(self) -> Path:
        """The rendered tree, a folder per node."""
        return self.path / "nodes"

    @property
    def configs(self) -> Path:
        """Configurations that were given with the topology, a folder per switch."""
        return self.path / "configs"

    def keep(self, fabric: Fabric, source: str) -> None:
        """The topology and the configurations given with it, so that the lab needs neither where they came from."""
        self.topology.write_text(source)
        shutil.rmtree(self.configs, ignore_errors=True)
        for switch in fabric.switches:
            for name, content in switch.given.items():
                path = self.configs / switch.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def fabric(self) -> Fabric:
        """The fabric of what ``keep`` kept. Raises OSError where it has gone."""
        from fabtest.topology import load_fabric_text

        record = self.read()
        name = record.topology if record else self.name
        return load_fabric_text(self.topology.read_text(), str(self.topology), default_name=name, configs=self.configs)

    def node(self, name: str) -> Path:
        """A node's folder."""
        return self.nodes / name

    def exists(self) -> bool:
        """Whether there is a folder at all."""
        return self.path.is_dir()

    def read(self) -> LabRecord | None:
        """The record, or None if the folder or the record is missing or damaged."""
        try:
            return LabRecord(**json.loads((self.path / "lab.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, record: LabRecord) -> None:
        """Replace the record whole."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.path / ".lab.json.new"
        temporary.write_text(json.dumps(asdict(record), indent=2) + "\n")
        os.replace(temporary, self.path / "lab.json")

    def delete(self) -> None:
        """Remove the folder, and the root if it is the last."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Only one command changes a lab at a time. Raises LabError if another holds it after ``wait`` seconds."""
        import time

        ROOT.mkdir(parents=True, exist_ok=True)
        path = ROOT / f".{self.name}.lock"
        deadline = time.monotonic() + wait
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(handle, 20).decode(errors="replace").strip()
                os.close(handle)
                if time.monotonic() >= deadline:
                    raise LabError(
                        f"lab {self.name} is being changed by another command (process {holder or 'unknown'})",
                        hint="wait for it, or end that process",
                    ) from None
                time.sleep(0.1)
                continue
            try:
                if os.fstat(handle).st_ino == os.stat(path).st_ino:
                    break
            except FileNotFoundError:
                pass
            os.close(handle)
        try:
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            yield
        finally:
            if not self.exists():
                path.unlink(missing_ok=True)
                _remove_if_empty(ROOT)
            os.close(handle)


def _remove_if_empty(path: Path) -> None:
    """Remove a folder if it is empty."""
    try:
        path.rmdir()
    except OSError:
        pass


def folders() -> list[LabFolder]:
    """Every lab with a folder."""
    if not ROOT.is_dir():
        return []
    return [LabFolder(p.name) for p in sorted(ROOT.iterdir()) if p.is_dir() and NAME.match(p.name)]


def locks_left() -> list[str]:
    """Lock files without a folder: of commands that were killed."""
    if not ROOT.is_dir():
        return []
    names = [p.name[1:-5] for p in ROOT.glob(".*.lock")]
    return [n for n in names if NAME.match(n) and not (ROOT / n).is_dir()]
