"""The contracts between a lab and everything that uses one.

Suites, traffic and reports know these names only. A node's network is reached by entering ``LiveNode.netns`` from
outside, so raw sockets, captures and faults are the same code on every runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fabtest.model import Fabric
from fabtest.sonic.db import ConfigDb, DbId


class Capability(StrEnum):
    """What a runtime can do; suites ask for these and skip with the reason where one is missing."""

    CONFIG_DB = "config_db"
    APPL_DB = "appl_db"
    STATE_DB = "state_db"
    COUNTERS = "counters"
    LIVE_CONFIG = "live_config"
    LLDP = "lldp"
    HASH_SEED = "hash_seed"
    ASIC_DB = "asic_db"
    QOS_DATAPATH = "qos_datapath"


class Fault(StrEnum):
    """How a link can fail."""

    CARRIER = "carrier"
    SILENT = "silent"
    GREY = "grey"


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended: exit code and output."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class LabInfo:
    """A lab on this machine, whatever its state: ``up``, ``building`` or ``broken``."""

    name: str
    state: str
    topology: str
    switches: int
    servers: int
    since: str
    runtime: str


#: Called with a stage's name when it begins, and how much of how many is done.
Progress = Callable[[str, int, int], None]


@runtime_checkable
class LiveNode(Protocol):
    """A node that runs."""

    @property
    def name(self) -> str:
        """Its name in the topology."""

    @property
    def role(self) -> str:
        """``switch`` or ``server``."""

    @property
    def netns(self) -> Path:
        """What ``namespaces.inside`` takes."""

    def exec(self, argv: Sequence[str], timeout: float = 30.0) -> Completed:
        """Run a command in the node. Raises ExecError if it cannot start or does not end in time."""

    def interactive(self, argv: Sequence[str], timeout: float | None) -> int:
        """Run a command on the caller's terminal; its exit code (127: no such program, 124: out of time)."""

    def db(self, db: DbId) -> Any:
        """A redis.Redis client of one of a switch's databases."""

    def vty(self, daemon: str, command: str) -> dict[str, Any]:
        """The JSON answer of a routing daemon to a show command."""

    def logs(self) -> list[Path]:
        """Files its daemons write to, those that matter most last."""

    def interface(self, port: str) -> str:
        """The kernel interface behind a port: it has the port's addresses."""

    def wire(self, port: str) -> str:
        """The kernel interface that has the cable of a port, and its carrier; often the same."""


class Lab(Protocol):
    """A fabric that runs."""

    @property
    def name(self) -> str:
        """The lab's name."""

    @property
    def fabric(self) -> Fabric:
        """What was designed."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What suites may count on."""

    def node(self, name: str) -> LiveNode:
        """A node by name. Raises UsageError with the nearest name."""

    def nodes(self) -> Iterator[LiveNode]:
        """All of them, switches first."""

    def fail_link(self, a: str, b: str, fault: Fault, loss: float = 0.01) -> list[str]:
        """Break every link between two nodes (or ``a`` may be ``node:port``); returns the links broken.

        ``loss`` is the share of frames a grey link loses, each way.
        """

    def repair_link(self, a: str, b: str) -> list[str]:
        """Undo ``fail_link``."""

    def stop_node(self, name: str) -> None:
        """Power a node off: its links lose carrier, its daemons stop."""

    def start_node(self, name: str) -> None:
        """Power it on; it boots from its files."""

    def settle(self) -> None:
        """The fabric is up: what made way for others while it came up no longer does."""

    def with_fabric(self, fabric: Fabric) -> Lab:
        """The same lab, judged by another design of the same cables."""

    def replace_files(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace files a switch boots from; what runs is left as it is."""

    def wait_routing(self, name: str, config: ConfigDb) -> None:
        """Until FRR of a switch runs what CONFIG_DB now makes of it. Raises ExecError with what it refuses."""

    def reload_routing(self, name: str) -> None:
        """Bring a switch's running FRR to its ``frr.conf``. Raises ExecError with what it refuses."""

    def faults(self) -> dict[str, str]:
        """What was broken on purpose: link end or node -> how."""

    def logs(self) -> list[Path]:
        """Logs of the lab itself, not of a node."""

    def agent_running(self) -> bool:
        """Whether what applies CONFIG_DB to the lab runs."""

    def restart_agent(self) -> None:
        """Start it (again); traffic is not disturbed."""

    def trouble(self) -> list[str]:
        """What is wrong with the lab itself (an agent or a container that is gone), not with its fabric."""


class Runtime(Protocol):
    """A way to run fabrics."""

    name: str

    def deploy(self, fabric: Fabric, source: str, name: str, progress: Progress) -> Lab:
        """Bring a fabric up; on failure nothing is left behind."""

    def attach(self, name: str) -> Lab:
        """A lab that is up."""

    def destroy(self, name: str) -> bool:
        """Take a lab down, whole or half built; False if there was nothing."""

    def list(self) -> list[LabInfo]:
        """Labs on this machine."""
