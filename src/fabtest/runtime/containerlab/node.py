"""A node that is a container, reached from outside through its first process: network, files, commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabtest.errors import ExecError, LabError, UsageError
from fabtest.litenode import database
from fabtest.runtime.base import Completed
from fabtest.runtime.containerlab.engine import NodeContainer
from fabtest.runtime.node import run_command, run_on_terminal
from fabtest.runtime.vty import vty_json
from fabtest.sonic.db import DbId

#: Logs of a switch, those that matter most last: fabtest/sonic-lite's files, then what docker-sonic-vs has.
LOGS = (
    "var/log/supervisor/start.log", "var/log/supervisor/redis.log", "var/log/supervisor/litenode.log",
    "var/log/syslog", "var/log/frr/zebra.log", "var/log/frr/bfdd.log", "var/log/frr/bgpd.log",
    "var/log/fabtest-boot.log",
)  # fmt: skip
NSENTER = "/usr/bin/nsenter"


@dataclass(frozen=True, slots=True)
class ContainerNode:
    """A container of a lab; implements LiveNode. ``wires`` maps a port to its wire."""

    name: str
    role: str
    container: NodeContainer | None
    wires: dict[str, str]

    @property
    def pid(self) -> int:
        """Its first process. Raises LabError if it does not run."""
        if self.container is None:
            raise LabError(f"{self.name}: its container has gone", hint="`lab-up` of the same topology builds it anew")
        if not self.container.pid:
            raise LabError(
                f"{self.name}: its container is {self.container.status}",
                hint="`lab-up` of the same topology brings it back",
            )
        try:
            ours = os.stat(f"/proc/{self.container.pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            ours = True
        if ours:  # it has ended, or the number belongs to another process by now, one of the machine's
            raise LabError(f"{self.name}: its container has ended", hint="try again")
        return self.container.pid

    @property
    def root(self) -> Path:
        """Its file system."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def netns(self) -> Path:
        """Its network."""
        return Path(f"/proc/{self.pid}/ns/net")

    def _command(self, argv: Sequence[str]) -> list[str]:
        """Into all of the container's namespaces: what `docker exec` does, in milliseconds and on any terminal."""
        return [NSENTER, "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--", *argv]

    def _environment(self) -> dict[str, str]:
        assert self.container is not None
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        environment |= self.container.environment
        environment |= {key: os.environ[key] for key in ("TERM", "PS1") if key in os.environ}
        environment["FABTEST_NODE"] = self.name
        return environment

    def exec(self, argv: Sequence[str], timeout: float = 30.0) -> Completed:
        """Run a command in the container."""
        return run_command(self.name, self._command(argv), timeout, self._environment())

    def interactive(self, argv: Sequence[str], timeout: float | None) -> int:
        """Run a command on the caller's terminal."""
        return run_on_terminal(self._command(argv), timeout, self._environment())

    def db(self, db: DbId) -> Any:
        """A Redis client. Raises UsageError on a server, LabError if the container does not run."""
        if self.role != "switch":
            raise UsageError(f"{self.name} is a server: it has no SONiC databases")
        return database.client(self.root / "run" / "redis", db)

    def vty(self, daemon: str, command: str) -> Any:
        """JSON of a show command from a routing daemon."""
        try:
            return vty_json(self.root / "run" / "frr" / f"{daemon}.vty", command)
        except LabError as error:
            raise ExecError(error.message) from None

    def logs(self) -> list[Path]:
        """Files its daemons write to."""
        return [path for name in LOGS if (path := self.root / name).is_file()]

    def interface(self, port: str) -> str:
        """Ports keep their names: SONiC's on a switch, eth<n> on a server."""
        return port

    def wire(self, port: str) -> str:
        """``eth<n>`` of a switch port; a server's port is its own wire."""
        return self.wires.get(port, port)

    def is_lite(self) -> bool:
        """Whether a switch runs fabtest's lite node, and not SONiC's own daemons."""
        return (self.root / "usr/lib/python3/dist-packages/fabtest").is_dir()

    def boot_state(self) -> str:
        """What the boot script of a switch says: ``starting``, ``ready``, ``failed: ...``, or nothing yet."""
        try:
            return (self.root / "run" / "fabtest-boot").read_text().strip()
        except OSError:
            return ""

    def missing_wires(self) -> list[str]:
        """Ports whose wire is not in the container: it was restarted by Docker, not by containerlab."""
        from fabtest.runtime.namespaces import inside
        from fabtest.runtime.netlink import NetlinkSocket

        with inside(self.netns), NetlinkSocket() as kernel:
            links = kernel.links()
        return [port for port, wire in self.wires.items() if wire not in links]
