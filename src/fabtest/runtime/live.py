"""What every running lab shares: finding nodes, and breaking and mending links.

A fault acts on the *wire* of a port, the interface that has the cable's carrier, by entering the node's network from
outside. So it is the same on namespaces and on containers.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fabtest.errors import ExecError, LabError, UsageError
from fabtest.model import Endpoint, Fabric, Link
from fabtest.runtime import bpf_programs
from fabtest.runtime.base import Capability, Fault, LiveNode
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import Batch, NetlinkSocket
from fabtest.runtime.state import LabFolder
from fabtest.sonic.db import ConfigDb, DbId
from fabtest.sonic.routing_config import APPLIED, REFUSED, followed


def stored_lab(name: str, known: Sequence[str]) -> tuple[LabFolder, Fabric]:
    """The folder of a lab that is up, and its fabric. Raises LabError saying what is there instead."""
    folder = LabFolder(name)
    record = folder.read()
    if record is None:
        hint = f"labs: {', '.join(known)}" if known else "bring one up with `lab-up`"
        raise LabError(f"there is no lab {name}", hint=hint)
    if record.state != "up":
        raise LabError(f"lab {name} is {record.state}", hint=f"`lab-down --lab {name}`, then `lab-up`")
    try:
        return folder, folder.fabric()
    except OSError:
        raise LabError(f"the files of lab {name} have gone", hint=f"`lab-down {name}` removes the rest") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class LiveLab:
    """A running lab; what is left to a runtime is abstract."""

    capabilities: frozenset[Capability]

    def __init__(self, folder: LabFolder, fabric: Fabric) -> None:
        self.folder = folder
        self.name = folder.name
        self.fabric = fabric

    @abstractmethod
    def _node(self, name: str, role: str) -> LiveNode:
        """A node that is known to be in the fabric."""

    def settle(self) -> None:
        """Nothing made way."""

    @abstractmethod
    def with_fabric(self, fabric: Fabric) -> LiveLab:
        """The same lab, judged by another design of the same cables."""

    @abstractmethod
    def _agent_folder(self, name: str) -> Path:
        """Where the agent of a switch says what it did about FRR."""

    def wait_routing(self, name: str, config: ConfigDb, timeout: float = 60.0) -> None:
        """Until FRR of a switch runs what CONFIG_DB now makes of it. Raises ExecError with what it refuses."""
        _, digest = followed(config)
        folder = self._agent_folder(name)
        deadline = time.monotonic() + timeout
        while True:
            refused, _, words = _text_of(folder / REFUSED).partition("\n")
            if refused == digest:
                raise ExecError(words.strip())
            if _text_of(folder / APPLIED) == digest:
                return
            if time.monotonic() > deadline:
                raise ExecError(f"FRR of {name} does not follow CONFIG_DB (`lab-logs`, `agent-restart`)")
            time.sleep(0.1)

    @abstractmethod
    def reload_routing(self, name: str) -> None:
        """Bring a switch's running FRR to the ``frr.conf`` in its folder. Raises ExecError with what it refuses."""

    def replace_files(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace files a switch boots from; what runs is left as it is."""
        for file, content in files.items():
            path = self.folder.node(name) / file
            temporary = path.with_name(f".{file}.new")
            temporary.write_bytes(content)
            os.replace(temporary, path)

    def node(self, name: str) -> LiveNode:
        """A node by name. Raises UsageError with the nearest names."""
        if name not in self.fabric.switch and name not in self.fabric.server:
            near = difflib.get_close_matches(name, self.fabric.node_names, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`lab-status --lab {self.name}` lists the nodes"
            raise UsageError(f"lab {self.name} has no node {name!r}", hint=hint)
        return self._node(name, "switch" if name in self.fabric.switch else "server")

    def nodes(self) -> Iterator[LiveNode]:
        """All nodes."""
        return (self.node(name) for name in self.fabric.node_names)

    def faults(self) -> dict[str, str]:
        """Link end (``node:port``) or node -> ``carrier``, ``silent``, ``grey 1%`` or ``down``."""
        try:
            found = json.loads((self.folder.path / "faults.json").read_text())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()}

    def record_fault(self, key: str, how: str | None) -> None:
        """Note a fault, or (``how`` None) that it is gone."""

        def change(faults: dict[str, str]) -> None:
            if how is None:
                faults.pop(key, None)
            else:
                faults[key] = how

        self._record(change)

    def _record(self, change: Callable[[dict[str, str]], None]) -> None:
        """Change the record of faults; only one at a time does."""
        with open(self.folder.path / ".faults.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            faults = self.faults()
            change(faults)
            temporary = self.folder.path / ".faults.json.new"
            temporary.write_text(json.dumps(faults, indent=2) + "\n")
            os.replace(temporary, self.folder.path / "faults.json")

    def cut_ports(self, node: str) -> set[str]:
        """Ports of a node without carrier by a fault of the link (not of the node)."""
        return {
            key.partition(":")[2]
            for key, how in self.faults().items()
            if key.startswith(f"{node}:") and how == "carrier"
        }

    def _links(self, a: str, b: str) -> list[Link]:
        """The links between two nodes; either may name a port, ``leaf1:Ethernet0``."""
        (a_node, _, a_port), (b_node, _, b_port) = a.partition(":"), b.partition(":")
        self.node(a_node)
        self.node(b_node)
        found = [
            link
            for link in self.fabric.links_between(a_node, b_node)
            if (not a_port or link.end(a_node).port == a_port) and (not b_port or link.end(b_node).port == b_port)
        ]
        if not found:
            peers = sorted({link.other(a_node).node for link in self.fabric.links_of[a_node]})
            raise UsageError(f"there is no link between {a} and {b}", hint=f"{a_node} is linked to {', '.join(peers)}")
        return found

    def fail_link(self, a: str, b: str, fault: Fault, loss: float = 0.01) -> list[str]:
        """Carrier: the switch end nearer the spine is set down, so the other end sees the carrier go. Silent: both
        ends drop every frame they receive, and carrier stays. Grey: they drop a share of the frames, at random.

        Raises UsageError if the share means nothing.
        """
        if fault is Fault.GREY and not 0 < loss < 1:
            raise UsageError(f"a loss of {loss:.2%} is no grey link", hint="more than 0 and less than 100 percent")
        links = self._links(a, b)
        for link in links:
            self._mend(link)
            if fault is Fault.CARRIER:
                self.record_fault(str(link.b), "carrier")
                self.set_wires(link.b.node, [link.b.port], False)
            else:
                for end in (link.a, link.b):
                    self.record_fault(str(end), "silent" if fault is Fault.SILENT else f"grey {loss * 100:g}%")
                    self._set_drop(end, 1.0 if fault is Fault.SILENT else loss)
        return [str(link) for link in links]

    def repair_link(self, a: str, b: str) -> list[str]:
        """Whatever was wrong with the links, it is mended, also if the record of it was lost."""
        links = self._links(a, b)
        for link in links:
            self._mend(link)
        return [str(link) for link in links]

    def _mend(self, link: Link) -> None:
        for end in (link.a, link.b):
            self._set_drop(end, 0.0)
            self.record_fault(str(end), None)
            self._restore_port(end)

    def set_wires(self, name: str, ports: list[str], up: bool) -> None:
        """Carrier of ports of a node on or off."""
        node = self.node(name)
        batch = Batch()
        for port in ports:
            batch.set_link(node.wire(port), up=up)
        with inside(node.netns), NetlinkSocket() as kernel:
            kernel.run(batch)

    def _restore_port(self, end: Endpoint) -> None:
        """A switch port comes back as CONFIG_DB has it, a server's simply comes up; not while its node is off."""
        if end.node in self.faults():
            return
        if end.node in self.fabric.switch:
            admin = self.node(end.node).db(DbId.CONFIG).hget(f"PORT|{end.port}", "admin_status")
            if admin != "up":
                return
        self.set_wires(end.node, [end.port], True)

    def _set_drop(self, end: Endpoint, share: float) -> None:
        """Drop this share of the frames an end receives; 0 takes the program off."""
        node = self.node(end.node)
        handle = bpf_programs.load_drop(share) if share else -1
        try:
            batch = Batch()
            batch.set_xdp(node.wire(end.port), handle)
            with inside(node.netns), NetlinkSocket() as kernel:
                kernel.run(batch)
        finally:
            if handle >= 0:
                os.close(handle)
