"""A running namespace lab: its nodes, and what can be broken in it and mended."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fabtest.errors import UsageError
from fabtest.litenode import database
from fabtest.litenode.intent import switch_intent
from fabtest.litenode.kernel import apply_intent
from fabtest.model import Endpoint, Fabric, Link
from fabtest.runtime import bpf, processes
from fabtest.runtime.base import Capability, Fault, LiveNode
from fabtest.runtime.boot import agent_pid, boot_server, start_agent, start_redis, start_routing
from fabtest.runtime.namespaces import inside, namespace_path
from fabtest.runtime.netlink import Batch, NetlinkSocket
from fabtest.runtime.node import NetnsNode
from fabtest.runtime.processes import Process
from fabtest.runtime.state import LabFolder
from fabtest.sonic.db import DbId


class NetnsLab:
    """A running namespace lab; implements Lab."""

    def __init__(self, folder: LabFolder, fabric: Fabric) -> None:
        self.folder = folder
        self.name = folder.name
        self.fabric = fabric
        self.capabilities = frozenset(
            {
                Capability.CONFIG_DB, Capability.APPL_DB, Capability.STATE_DB, Capability.COUNTERS,
                Capability.LIVE_CONFIG, Capability.LLDP,
                *({Capability.HASH_SEED} if Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists() else ()),
            }
        )  # fmt: skip

    def node(self, name: str) -> NetnsNode:
        """A node by name."""
        if name not in self.fabric.switch and name not in self.fabric.server:
            near = difflib.get_close_matches(name, self.fabric.node_names, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"`lab-status --lab {self.name}` lists the nodes"
            raise UsageError(f"lab {self.name} has no node {name!r}", hint=hint)
        role = "switch" if name in self.fabric.switch else "server"
        return NetnsNode(name, role, self.folder.node(name), namespace_path(self.name, name))

    def nodes(self) -> Iterator[LiveNode]:
        """All nodes."""
        return (self.node(name) for name in self.fabric.node_names)

    def logs(self) -> list[Path]:
        """The agent's."""
        return [path for name in ("agent.out", "agent.log") if (path := self.folder.path / name).is_file()]

    def agent_running(self) -> bool:
        """Whether the agent runs."""
        return agent_pid(self.name) is not None

    def restart_agent(self) -> None:
        """End the agent if it runs, and start one."""
        pid = agent_pid(self.name)
        if pid is not None:
            processes.end([Process(pid, "agent")], gently=(pid,))
        start_agent(self.name)
        processes.forget_children()

    # -------------------------------------------------------------------------------------------------- faults

    def faults(self) -> dict[str, str]:
        """Link end (``node:port``) or node -> ``carrier``, ``silent`` or ``down``."""
        try:
            found = json.loads((self.folder.path / "faults.json").read_text())
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in found.items()}

    def _record(self, change: Callable[[dict[str, str]], None]) -> None:
        """Change the record of faults; only one at a time does."""
        with open(self.folder.path / ".faults.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            faults = self.faults()
            change(faults)
            temporary = self.folder.path / ".faults.json.new"
            temporary.write_text(json.dumps(faults, indent=2) + "\n")
            os.replace(temporary, self.folder.path / "faults.json")

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

    def fail_link(self, a: str, b: str, fault: Fault) -> list[str]:
        """Carrier: the switch end nearer the spine is set down, so the other end sees the carrier go. Silent: both
        ends drop every frame they receive, and carrier stays."""
        links = self._links(a, b)
        for link in links:
            self._mend(link)
            if fault is Fault.CARRIER:
                end = link.b
                self._record(lambda f, end=end: f.__setitem__(str(end), "carrier"))  # type: ignore[misc]
                self._set_up(end, False)
            else:
                for end in (link.a, link.b):
                    self._record(lambda f, end=end: f.__setitem__(str(end), "silent"))  # type: ignore[misc]
                    self._set_drop(end, True)
        return [str(link) for link in links]

    def repair_link(self, a: str, b: str) -> list[str]:
        """Whatever was wrong with the links, it is mended, also if the record of it was lost."""
        links = self._links(a, b)
        for link in links:
            self._mend(link)
        return [str(link) for link in links]

    def _mend(self, link: Link) -> None:
        for end in (link.a, link.b):
            self._set_drop(end, False)
            self._record(lambda f, end=end: _forget(f, str(end)))  # type: ignore[misc]
            self._restore_port(end)

    def _set_up(self, end: Endpoint, up: bool) -> None:
        batch = Batch()
        batch.set_link(end.port, up=up)
        with inside(self.node(end.node).netns), NetlinkSocket() as kernel:
            kernel.run(batch)

    def _restore_port(self, end: Endpoint) -> None:
        """A switch port comes back as CONFIG_DB has it, a server's simply comes up; not while its node is off."""
        if end.node in self.faults():
            return
        if end.node in self.fabric.switch:
            admin = self.node(end.node).db(DbId.CONFIG).hget(f"PORT|{end.port}", "admin_status")
            if admin != "up":
                return
        self._set_up(end, True)

    def _set_drop(self, end: Endpoint, drop: bool) -> None:
        handle = bpf.load_drop() if drop else -1
        try:
            batch = Batch()
            batch.set_xdp(end.port, handle)
            with inside(self.node(end.node).netns), NetlinkSocket() as kernel:
                kernel.run(batch)
        finally:
            if handle >= 0:
                os.close(handle)

    def stop_node(self, name: str) -> None:
        """Power off."""
        node = self.node(name)
        self._record(lambda f: f.__setitem__(name, "down"))
        batch = Batch()
        for link in self.fabric.links_of[name]:
            batch.set_link(link.end(name).port, up=False)
        with inside(node.netns), NetlinkSocket() as kernel:
            kernel.run(batch)
        self._end_daemons(node)

    def _end_daemons(self, node: NetnsNode) -> None:
        ours = [p for p in processes.of_lab(self.name, [node.netns]) if self._in_folder(p, node.folder)]
        processes.end(ours)
        processes.remove_frr_scratch(ours)

    @staticmethod
    def _in_folder(process: Process, folder: Path) -> bool:
        """Whether a daemon was started for this node (its command line names the node's folder)."""
        try:
            return f"{folder}/".encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            return False

    def start_node(self, name: str) -> None:
        """Power on: a switch starts with empty databases and loads its config_db.json."""
        node = self.node(name)
        os.umask(0o022)
        self._end_daemons(node)  # those of a node that was not off, or did not come up whole
        self._record(lambda f: _forget(f, name))
        try:
            self._boot(node)
        except BaseException:
            self._record(lambda f: f.__setitem__(name, "down"))
            raise

    def _boot(self, node: NetnsNode) -> None:
        """Kernel first, then CONFIG_DB: the agent follows a CONFIG_DB that is whole, and finds nothing left to do."""
        name = node.name
        if name in self.fabric.switch:
            config = database.read_config_file(node.folder / "config_db.json")
            start_redis(self.name, [node])
            faults = self.faults().items()
            cut = {k.partition(":")[2] for k, how in faults if k.startswith(f"{name}:") and how == "carrier"}
            with inside(node.netns), NetlinkSocket() as kernel:
                apply_intent(switch_intent(config), kernel, cut)
            database.wait_ready(node.folder)
            database.load_config(node.folder, config)
            start_routing(self.name, [node], self.fabric)
        else:
            with inside(node.netns), NetlinkSocket() as kernel:
                boot_server(self.fabric, self.fabric.server[name], kernel)
        processes.forget_children()


def _forget(faults: dict[str, str], key: str) -> None:
    faults.pop(key, None)
