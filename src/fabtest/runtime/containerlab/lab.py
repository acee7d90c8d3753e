"""A running lab of containers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import redis

from fabtest.errors import ExecError, FabtestError, LabError
from fabtest.litenode.kernel import hash_by_qp
from fabtest.model import Fabric
from fabtest.render.containerlab import SERVER_BOOT, wires
from fabtest.runtime.base import Capability
from fabtest.runtime.containerlab.engine import Engine
from fabtest.runtime.containerlab.node import ContainerNode
from fabtest.runtime.live import LiveLab
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import NetlinkSocket, hasten_neighbours
from fabtest.runtime.state import LabFolder
from fabtest.sonic.db import DbId

#: What any SONiC-VS image has.
BASIC = frozenset({Capability.CONFIG_DB, Capability.APPL_DB, Capability.STATE_DB, Capability.LIVE_CONFIG})
SEED_SYSCTL = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")


class ContainerLab(LiveLab):
    """A running containerlab lab; implements Lab. What its containers are is read once, when it is attached to."""

    def __init__(self, folder: LabFolder, fabric: Fabric, engine: Engine) -> None:
        super().__init__(folder, fabric)
        self.engine = engine
        self.refresh()
        self.capabilities = self._capabilities()

    def refresh(self) -> None:
        """Look at the containers again (their processes change when they are restarted)."""
        self._containers = self.engine.nodes(self.name)

    def _node(self, name: str, role: str) -> ContainerNode:
        if role == "switch":
            ports = wires(self.fabric, self.fabric.switch[name])
        else:
            ports = {p.name: p.name for p in self.fabric.server[name].ports}
        return ContainerNode(name, role, self._containers.get(name), ports)

    def container(self, name: str) -> ContainerNode:
        """A node by name."""
        return self._node(name, self.node(name).role)

    def _capabilities(self) -> frozenset[Capability]:
        """Asked of the first switch that runs: is this docker-sonic-vs, with an ASIC_DB, or the lite node?"""
        found = set(BASIC)
        if SEED_SYSCTL.exists():
            found.add(Capability.HASH_SEED)
        for switch in self.fabric.switches:
            node = self.container(switch.name)
            try:
                lite = node.is_lite()
                asic = bool(node.db(DbId.ASIC).keys("ASIC_STATE:SAI_OBJECT_TYPE_SWITCH:*"))
            except (FabtestError, OSError, redis.RedisError):  # off, or a Redis that does not answer yet
                continue
            if lite:
                found |= {Capability.COUNTERS, Capability.LLDP}
            elif any((node.root / f"usr/sbin/{lldpd}").exists() for lldpd in ("lldpd", "lldpmgrd")):
                found.add(Capability.LLDP)
            if asic:
                found.add(Capability.ASIC_DB)
            break
        return frozenset(found)

    def logs(self) -> list[Path]:
        """containerlab's own."""
        return [path for path in (self.folder.path / "containerlab.log",) if path.is_file()]

    # ------------------------------------------------------------------------------------------------- the agents

    def agent_running(self) -> bool:
        """Whether every lite switch's agent runs; docker-sonic-vs has daemons of its own in its place."""
        return not self._without_agent()

    def _without_agent(self) -> list[str]:
        found = []
        faults = self.faults()
        for switch in self.fabric.switches:
            if faults.get(switch.name) == "down":
                continue
            node = self.container(switch.name)
            try:
                if not node.is_lite():
                    continue
                pid = (node.root / "run" / "litenode.pid").read_text().strip()
                if not (node.root / "proc" / pid).is_dir():
                    found.append(switch.name)
            except (FabtestError, OSError):
                found.append(switch.name)
        return found

    def restart_agent(self) -> None:
        """The agent of every lite switch that is on, by supervisor. Raises ExecError naming those that did not."""
        failed = []
        faults = self.faults()
        for switch in self.fabric.switches:
            if faults.get(switch.name) == "down":
                continue
            try:
                done = self.container(switch.name).exec(["supervisorctl", "restart", "litenode"])
            except (FabtestError, OSError) as error:
                failed.append(str(error))
                continue
            if done.returncode:
                failed.append(f"{switch.name}: supervisorctl restart litenode: {done.stdout.strip()}")
        if failed:
            raise ExecError("; ".join(failed))

    def trouble(self) -> list[str]:
        """Containers that do not run, lost their cables, or did not boot; agents that are gone."""
        lines = self.damage()
        without = self._without_agent()
        if without and not lines:
            lines.append(f"no agent runs in {', '.join(without)} (`agent-restart` starts it)")
        return lines

    def damage(self) -> list[str]:
        """What only a new deploy (or, of a boot, a little time) mends."""
        faults = self.faults()
        lines = []
        for name in self.fabric.node_names:
            node = self.container(name)
            try:
                gone = node.missing_wires()
                off = node.role == "server" or faults.get(name) == "down"
                boot = "ready" if off else node.boot_state()
            except LabError as error:
                lines.append(error.message)
                continue
            if gone:
                lines.append(
                    f"{name}: its cables have gone ({', '.join(gone)}): the container was restarted by Docker, not by "
                    "containerlab (`lab-up` of the same topology mends it)"
                )
            elif boot.startswith("failed"):
                lines.append(f"{name}: its boot {boot}")
            elif boot == "starting":
                lines.append(f"{name}: is booting")
        return lines

    def with_fabric(self, fabric: Fabric) -> ContainerLab:
        """The same lab, judged by another design of the same cables."""
        return ContainerLab(self.folder, fabric, self.engine)

    def _agent_folder(self, name: str) -> Path:
        return self.container(name).root / "run" / "redis"

    def reload_routing(self, name: str) -> None:
        """Bring a switch's running FRR to the ``frr.conf`` in its folder. Raises ExecError with what it refuses."""
        done = self.container(name).exec(["bash", "/var/sonic/sonic-vs.sh", "reload"], timeout=120)
        if done.returncode:
            words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise ExecError(f"{name}: FRR did not take its new configuration: {' / '.join(words[-3:])}")

    # --------------------------------------------------------------------------------------------------- power

    def stop_node(self, name: str) -> None:
        """Power off, at once: carrier goes on every cable, then every daemon. The container stays."""
        self.refresh()  # its first process may be another by now
        self.record_fault(name, "down")
        self.set_wires(name, self._ports(name), False)
        if name in self.fabric.switch:
            # All but the container's first process, which a signal from inside cannot end.
            self.container(name).exec(["sh", "-c", "rm -f /run/fabtest-boot; kill -KILL -1"])

    def start_node(self, name: str) -> None:
        """Power on; a switch boots from its config_db.json. Returns when it has. Raises LabError if it does not."""
        self.refresh()
        self.record_fault(name, None)
        cut = self.cut_ports(name)
        try:
            self.set_wires(name, [p for p in self._ports(name) if p not in cut], True)
            node = self.container(name)
            if node.role == "switch":
                node.exec(["rm", "-f", "/run/fabtest-boot"])
                node.exec(["bash", "/var/sonic/sonic-vs.sh", "boot"])
                self.wait_booted([name])
            else:
                done = node.exec(["sh", "-c", SERVER_BOOT])
                if done.returncode:
                    raise LabError(f"{name} does not boot: {done.stderr.strip() or done.stdout.strip()}")
                self.check_servers([name])
        except BaseException:
            self.record_fault(name, "down")
            raise

    def _ports(self, name: str) -> list[str]:
        return [link.end(name).port for link in self.fabric.links_of[name]]

    def wait_booted(
        self, names: list[str], timeout: float = 180.0, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Until the boot script of every switch says so. Raises LabError with what the node has to say."""
        deadline = time.monotonic() + timeout
        left = list(names)
        while left:
            still = []
            for name in left:
                node = self.container(name)
                state = node.boot_state()
                if state.startswith("failed"):
                    raise LabError(f"{name} does not boot: {state.partition(': ')[2]}", hint=self._last_words(node))
                if state != "ready":
                    still.append(name)
                elif self.fabric.qp_hash:
                    with inside(node.netns), NetlinkSocket() as kernel:
                        hash_by_qp(kernel, self.fabric.switch[name].hash.seed)
            left = still
            if progress is not None:
                progress(len(names) - len(left), len(names))
            if left and time.monotonic() > deadline:
                node = self.container(left[0])
                raise LabError(
                    f"{left[0]} has not booted within {timeout:g} s (its boot script says {node.boot_state()!r})",
                    hint=self._last_words(node),
                )
            if left:
                time.sleep(0.1)

    def hasten_neighbours(self) -> None:
        """As in namespaces: neighbours are asked for again sooner than after a second, on every node's ports."""
        for name in self.fabric.node_names:
            node = self.container(name)
            with inside(node.netns), NetlinkSocket() as kernel:
                links = kernel.links()
                hasten_neighbours(kernel, [links[p].index for p in self._ports(name) if p in links])

    def check_servers(self, names: list[str]) -> None:
        """Whether servers have the addresses they should: containerlab only logs a script that failed.

        Raises LabError.
        """
        for name in names:
            node = self.container(name)
            with inside(node.netns), NetlinkSocket() as kernel:
                links = {link.index: link.name for link in kernel.links().values()}
                have = {(links.get(a.index), a.interface) for a in kernel.addresses()}
            for port in self.fabric.server[name].ports:
                missing = [str(a) for a in port.addresses if (port.name, a) not in have]
                if missing:
                    done = node.exec(["sh", "-c", SERVER_BOOT])
                    raise LabError(
                        f"{name}: {port.name} does not have {', '.join(missing)}",
                        hint=f"network.sh: {(done.stderr or done.stdout).strip() or 'no word'}",
                    )

    def _last_words(self, node: ContainerNode) -> str:
        """Supervisor's status and the end of the logs of a switch that does not come up."""
        try:
            status = node.exec(["supervisorctl", "status"], timeout=10).stdout.strip()
            lines = [line for log in node.logs()[-3:] for line in log.read_text(errors="replace").splitlines()[-4:]]
        except (FabtestError, OSError) as error:
            return str(error)
        return "\n    ".join(["supervisorctl status:", *status.splitlines()[:20], "last lines:", *lines])
