"""A node of a namespace lab: commands, databases and daemons inside it, reached from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabtest.errors import ExecError, UsageError
from fabtest.litenode import database
from fabtest.runtime.base import Completed
from fabtest.runtime.vty import vty_json
from fabtest.sonic.db import DbId


@dataclass(frozen=True, slots=True)
class NetnsNode:
    """A node of a namespace lab; implements LiveNode."""

    name: str
    role: str
    folder: Path
    netns: Path

    def exec(self, argv: Sequence[str], timeout: float = 30.0) -> Completed:
        """Run a command in the node, with the node's own /etc/sonic, /etc/frr and /run."""
        return run_command(self.name, node_command(self, argv), timeout)

    def interactive(self, argv: Sequence[str], timeout: float | None) -> int:
        """Run a command on the caller's terminal."""
        return run_on_terminal(node_command(self, argv), timeout)

    def db(self, db: DbId) -> Any:
        """A Redis client. Raises UsageError on a server."""
        if self.role != "switch":
            raise UsageError(f"{self.name} is a server: it has no SONiC databases")
        return database.client(self.folder, db)

    def vty(self, daemon: str, command: str) -> Any:
        """JSON of a show command from a routing daemon."""
        return vty_json(self.folder / "run" / f"{daemon}.vty", command)

    def logs(self) -> list[Path]:
        """redis, zebra, bfdd, bgpd, in that order; what a daemon printed before it opened its log comes first."""
        names = [f"log/{daemon}.{kind}" for daemon in ("zebra", "bfdd", "bgpd") for kind in ("out", "log")]
        return [path for name in ("redis.log", *names) if (path := self.folder / name).is_file()]

    def interface(self, port: str) -> str:
        """Ports keep their names here."""
        return port

    def wire(self, port: str) -> str:
        """A port is its own wire."""
        return port


def run_command(
    node: str, command: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None
) -> Completed:
    """Run a command that enters a node and collect what it prints. Raises ExecError if it does not end in time."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=environment,
    )  # fmt: skip
    try:
        out, err = child.communicate(timeout=timeout)
    except BaseException as error:
        end_family(child.pid)
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ExecError(f"{node}: {' '.join(command)} did not end within {timeout:g} s") from None
        raise
    return Completed(child.returncode, out, err)


def end_family(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process of ours and its descendants: what enters a container leaves the command to a child."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, number)
    except OSError:
        return
    for child in children:
        end_family(int(child), number)


def run_on_terminal(command: Sequence[str], timeout: float | None, environment: Mapping[str, str] | None = None) -> int:
    """Run a command that enters a node on the caller's terminal; its exit code, 124 if it was out of time."""
    child = subprocess.Popen(command, env=environment)
    # Ctrl-C is the command's, not ours; set after the start, since a child inherits what is ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        end_family(child.pid, signal.SIGINT)
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            end_family(child.pid)
            child.wait()
        return 124
    finally:
        signal.signal(signal.SIGINT, before)


def node_command(node: NetnsNode, argv: Sequence[str]) -> list[str]:
    """The command line that runs ``argv`` inside a node (also of an interactive shell)."""
    import sys

    return [sys.executable, "-m", "fabtest.runtime.enter", str(node.netns), str(node.folder), "--", *argv]
