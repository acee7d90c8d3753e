"""A running namespace lab: its nodes, and what can be broken in it and mended."""

from __future__ import annotations

import os
from pathlib import Path

from fabtest.litenode import database
from fabtest.litenode.intent import switch_intent
from fabtest.litenode.kernel import apply_intent
from fabtest.model import Fabric
from fabtest.runtime import processes
from fabtest.runtime.base import Capability
from fabtest.runtime.boot import (
    agent_pid,
    boot_server,
    loopbacks_of,
    prepare_routing,
    start_agent,
    start_redis,
    start_routing,
    start_zebra,
)
from fabtest.runtime.live import LiveLab
from fabtest.runtime.namespaces import inside, namespace_path
from fabtest.runtime.netlink import NetlinkSocket
from fabtest.runtime.node import NetnsNode
from fabtest.runtime.processes import Process
from fabtest.runtime.reload import reload_frr
from fabtest.runtime.state import LabFolder
from fabtest.sonic.lite_frr import lite_frr


class NetnsLab(LiveLab):
    """A running namespace lab; implements Lab."""

    def __init__(self, folder: LabFolder, fabric: Fabric) -> None:
        super().__init__(folder, fabric)
        self.capabilities = frozenset(
            {
                Capability.CONFIG_DB, Capability.APPL_DB, Capability.STATE_DB, Capability.COUNTERS,
                Capability.LIVE_CONFIG, Capability.LLDP,
                *({Capability.HASH_SEED} if Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists() else ()),
            }
        )  # fmt: skip

    def _node(self, name: str, role: str) -> NetnsNode:
        return NetnsNode(name, role, self.folder.node(name), namespace_path(self.name, name))

    def netns_node(self, name: str) -> NetnsNode:
        """A node by name."""
        return self._node(name, self.node(name).role)

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

    def settle(self) -> None:
        """Daemons that yielded to each other no longer do."""
        processes.settle(self.name, [self.folder.node(switch.name) / "run" for switch in self.fabric.switches])

    def with_fabric(self, fabric: Fabric) -> NetnsLab:
        """The same lab, judged by another design of the same cables."""
        return NetnsLab(self.folder, fabric)

    def _agent_folder(self, name: str) -> Path:
        return self.folder.node(name)

    def reload_routing(self, name: str) -> None:
        """Bring a switch's running FRR to the ``frr.conf`` in its folder. Raises ExecError with what it refuses."""
        node = self.netns_node(name)
        file = node.folder / "frr.new.conf"
        file.write_text(lite_frr((node.folder / "frr.conf").read_text(errors="replace"), loopbacks_of(node.folder)))
        reload_frr(node.folder / "run", file)

    def trouble(self) -> list[str]:
        """What is wrong with the lab itself, not with its fabric."""
        if self.agent_running():
            return []
        return ["the agent does not run: changes of CONFIG_DB are not applied (`agent-restart` starts it)"]

    def stop_node(self, name: str) -> None:
        """Power off."""
        node = self.netns_node(name)
        self.record_fault(name, "down")
        self.set_wires(name, [link.end(name).port for link in self.fabric.links_of[name]], False)
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
        node = self.netns_node(name)
        os.umask(0o022)
        self._end_daemons(node)  # those of a node that was not off, or did not come up whole
        self.record_fault(name, None)
        try:
            self._boot(node)
        except BaseException:
            self.record_fault(name, "down")
            raise

    def _boot(self, node: NetnsNode) -> None:
        """Kernel first, then CONFIG_DB: the agent follows a CONFIG_DB that is whole, and finds nothing left to do."""
        name = node.name
        if name in self.fabric.switch:
            config = database.read_config_file(node.folder / "config_db.json")
            start_redis(self.name, [node])
            with inside(node.netns), NetlinkSocket() as kernel:
                apply_intent(switch_intent(config), kernel, self.cut_ports(name))
            database.wait_ready(node.folder)
            database.load_config(node.folder, config)
            prepare_routing([node])
            zebra = start_zebra(self.name, node, nice=0)
            start_routing(self.name, [node], self.fabric, {name: zebra})
        else:
            with inside(node.netns), NetlinkSocket() as kernel:
                boot_server(self.fabric, self.fabric.server[name], kernel)
        processes.forget_children()
