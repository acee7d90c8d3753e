"""containerlab as a typed module: ``deploy``, ``destroy``, ``inspect``, ``version``.

::

    clab = Containerlab.find()
    clab.deploy(Path("lab.clab.yml"), log=Path("lab.log"))
    for c in clab.inspect("lab"):
        print(c.node, c.state, c.ipv4)
    clab.destroy(Path("lab.clab.yml"), log=Path("lab.log"))

Data is containerlab's JSON on stdout; what it logs (stderr) goes to ``log``. Nothing is read from its tables.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from fabtest.errors import LabError, MachineError

#: From this release on ``inspect`` prints labs by name; older ones are read as well, but deploy differently.
OLDEST = (0, 68, 0)
#: containerlab's own image, used where there is no binary (its documentation, "Container").
IMAGE = "ghcr.io/srl-labs/clab"
HOW_TO_INSTALL = (
    "install containerlab 0.68 or newer so that `containerlab version` works (https://containerlab.dev/install), or "
    f"`docker pull {IMAGE}`"
)
_PR_SET_PDEATHSIG = 1
_VERSION = re.compile(r"^\s*version:\s*v?(\d+)\.(\d+)\.(\d+)", re.MULTILINE)

#: Called with every line containerlab logs.
Line = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Container:
    """A node as ``inspect`` lists it. Addresses are bare, or empty where it has none."""

    lab: str
    node: str
    name: str
    id: str
    image: str
    kind: str
    group: str
    state: str
    status: str
    ipv4: str
    topology: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A containerlab command that ended."""

    code: int
    stdout: str
    stderr: str


class Launcher(Protocol):
    """A way to run containerlab."""

    def describe(self) -> str:
        """For error messages and the lock file: the path or the image."""

    def run(self, arguments: Sequence[str], folder: Path, line: Line) -> Ran:
        """Run it in a folder; every line it logs is given to ``line`` as it comes."""


class Binary:
    """The program on PATH. It ends with us: a deploy does not go on when its caller was killed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def describe(self) -> str:
        """Its path."""
        return self.path

    def run(self, arguments: Sequence[str], folder: Path, line: Line) -> Ran:
        """Run it; an interrupt ends it before it is passed on."""
        environment = {**os.environ, "CLAB_VERSION_CHECK": "disable"}
        child = subprocess.Popen(
            [self.path, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True, preexec_fn=_end_with_parent,
        )  # fmt: skip
        assert child.stderr is not None
        lines: list[str] = []
        reader = threading.Thread(target=_follow, args=(child.stderr, lines, line), daemon=True)
        reader.start()
        try:
            assert child.stdout is not None
            out = child.stdout.read()
            code = child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            reader.join(5)
        return Ran(code, out, "".join(lines))


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow(stream: IO[str], lines: list[str], line: Line) -> None:
    for text in stream:
        lines.append(text)
        line(text.rstrip("\n"))


def _end(child: subprocess.Popen[str]) -> None:
    """It cleans up behind itself when asked to end; if it does not end soon it is killed, and we clean up."""
    try:
        os.killpg(child.pid, signal.SIGINT)
        child.wait(10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    except ProcessLookupError:
        child.wait()


class Containerlab:
    """containerlab, by binary or by image."""

    def __init__(self, launcher: Launcher, version: tuple[int, int, int]) -> None:
        self.launcher = launcher
        self.version = version

    @classmethod
    def find(cls) -> Containerlab:
        """The binary on PATH, else containerlab's image if Docker has it. Raises MachineError saying what to do."""
        path = shutil.which("containerlab")
        launcher: Launcher
        if path:
            launcher = Binary(path)
        else:
            from fabtest.runtime.containerlab.engine import Engine, ImageLauncher

            image = Engine().image(IMAGE)
            if image is None:
                raise MachineError("containerlab is not installed", hint=HOW_TO_INSTALL)
            launcher = ImageLauncher(IMAGE)
        ran = launcher.run(["version"], Path("/"), lambda text: None)
        found = _VERSION.search(ran.stdout)
        if ran.code or not found:
            why = last_error(ran.stderr) or "it prints no version"
            raise MachineError(f"{launcher.describe()} does not work: {why}", hint=HOW_TO_INSTALL)
        version = (int(found[1]), int(found[2]), int(found[3]))
        if version < OLDEST:
            has = ".".join(map(str, version))
            raise MachineError(f"containerlab {has} is too old", hint=HOW_TO_INSTALL)
        return cls(launcher, version)

    def deploy(
        self, topology: Path, *, log: Path, timeout: str = "10m", line: Line = lambda text: None
    ) -> list[Container]:
        """Build the lab of a topology file anew. Raises LabError with containerlab's own last words."""
        ran = self._run(
            ["deploy", "--topo", str(topology), "--reconfigure", "--format", "json", "--timeout", timeout],
            topology.parent, log, line,
        )  # fmt: skip
        if ran.code:
            raise LabError(
                f"containerlab could not deploy {topology.name}: {last_error(ran.stderr)}",
                hint=f"its log is {log}" if log.exists() else None,
            )
        return parse_inspect(ran.stdout)

    def destroy(self, topology: Path, *, log: Path) -> None:
        """Take the lab of a topology file down, its lab folder too. Raises LabError."""
        ran = self._run(["destroy", "--topo", str(topology), "--cleanup", "--yes"], topology.parent, log)
        if ran.code:
            raise LabError(f"containerlab could not destroy {topology.name}: {last_error(ran.stderr)}")

    def restart(self, topology: Path, node: str, *, log: Path) -> None:
        """Stop and start a node with its links kept. Raises LabError.

        The time-out is short because a `sonic-vs` node, whose first process is bash, ignores SIGTERM.
        """
        ran = self._run(["restart", "--topo", str(topology), "--node", node, "--timeout", "15s"], topology.parent, log)
        if ran.code:
            raise LabError(f"containerlab could not restart {node}: {last_error(ran.stderr)}")

    def inspect(self, lab: str = "") -> list[Container]:
        """The containers of a lab, or of all. Raises LabError."""
        ran = self.launcher.run(
            ["inspect", *(["--name", lab] if lab else ["--all"]), "--format", "json"], Path("/"), lambda text: None
        )
        if ran.code:
            raise LabError(f"containerlab inspect: {last_error(ran.stderr)}")
        return parse_inspect(ran.stdout)

    def _run(self, arguments: Sequence[str], folder: Path, log: Path, line: Line = lambda text: None) -> Ran:
        with open(log, "a") as out:

            def both(text: str) -> None:
                out.write(text + "\n")
                out.flush()
                line(text)

            return self.launcher.run(arguments, folder, both)


def parse_inspect(text: str) -> list[Container]:
    """``inspect --format json`` of any release: labs by name (from 0.68), or one list (before). Raises LabError."""
    try:
        data = json.loads(text or "{}")
        rows: list[dict[str, Any]]
        if isinstance(data, dict) and isinstance(data.get("containers"), list):
            rows = data["containers"]
        elif isinstance(data, dict):
            rows = [row for lab in data.values() for row in lab]
        else:
            rows = data
        return [_container(row) for row in rows]
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"containerlab printed what is not its JSON: {error}") from None


def _container(row: dict[str, Any]) -> Container:
    lab, name = str(row.get("lab_name", "")), str(row.get("name", ""))
    address = str(row.get("ipv4_address", "")).partition("/")[0]
    return Container(
        lab=lab,
        node=name.removeprefix(f"clab-{lab}-"),
        name=name,
        id=str(row.get("container_id", "")),
        image=str(row.get("image", "")),
        kind=str(row.get("kind", "")),
        group=str(row.get("group", "")),
        state=str(row.get("state", "")),
        status=str(row.get("status", "")),
        ipv4="" if address == "N/A" else address,
        topology=str(row.get("absLabPath") or row.get("labPath") or ""),
    )


def last_error(stderr: str) -> str:
    """The line of a log that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(ERRO|ERROR|FATA|Error|error)\b", line)]
    best = (errors or lines or ["it gave no reason"])[-1]
    return re.sub(r"^\S*\s*(ERRO|FATA|Error:)\s*", "", best)
