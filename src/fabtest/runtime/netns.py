"""Labs of network namespaces: lite SONiC switches and servers, on one kernel, with nothing to download.

Order of a deploy, which is what makes it fast: all namespaces; all redis-servers (they start meanwhile); all links;
all addresses and routes, every interface up; then all zebras, then all bgpds; CONFIG_DB is filled while they find
each other; then the agent. No daemon sees an interface come up twice, and no session is tried before its peer's
address exists.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from fabtest.errors import ExecError, FabtestError, LabError, MachineError, UsageError
from fabtest.litenode import database
from fabtest.litenode.intent import switch_intent
from fabtest.litenode.kernel import SWITCH_SYSCTLS, apply_hash, apply_intent
from fabtest.model import Endpoint, Fabric, Link, Server, Switch, Tier
from fabtest.render import write_tree
from fabtest.render.server import RULE_PRIORITY, SYSCTLS, server_network
from fabtest.runtime import bpf, host, namespaces, processes
from fabtest.runtime.base import Capability, Completed, Fault, LabInfo, LiveNode, Progress
from fabtest.runtime.namespaces import inside, namespace_path
from fabtest.runtime.netlink import Batch, NetlinkSocket, VethEnd
from fabtest.runtime.processes import Process, program, spawn
from fabtest.runtime.state import HOST_LIMITS, LabFolder, LabRecord, folders, locks_left
from fabtest.runtime.vty import vty_json
from fabtest.sonic.db import DbId
from fabtest.sonic.frr import split_by_daemon

DAEMONS = ("zebra", "bgpd", "bfdd")
WORKERS = 8
#: Up to so many switches, databases are filled while the first bgpds wait for their peers; with more of them the
#: machine has no time to spare then, and the spines would only come later.
OVERLAP_SWITCHES = 64
#: FRR gives up root for this user, which its packages make.
FRR_USER = "frr"
#: bgpd first calls its peers 0.75 to 1 s after its start (BGP_INIT_START_TIMER, jittered): tiers this far apart do not
#: collide. A collision (RFC 4271 6.8) costs a second.
TIER_GAP_S = 0.35
NO_IPV6 = {"net.ipv6.conf.all.disable_ipv6": 1, "net.ipv6.conf.default.disable_ipv6": 1}


@dataclass(frozen=True, slots=True)
class NetnsNode:
    """A node of a namespace lab; implements LiveNode."""

    name: str
    role: str
    folder: Path
    netns: Path

    def exec(self, argv: Sequence[str], timeout: float = 30.0) -> Completed:
        """Run a command in the node, with the node's own /etc/sonic, /etc/frr and /run."""
        try:
            done = subprocess.run(
                node_command(self, argv), capture_output=True, text=True, errors="replace", timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise ExecError(f"{self.name}: {' '.join(argv)} did not end within {timeout:g} s") from None
        return Completed(done.returncode, done.stdout, done.stderr)

    def interactive(self, argv: Sequence[str], timeout: float | None) -> int:
        """Run a command on the caller's terminal."""
        child = subprocess.Popen(node_command(self, argv))
        # Ctrl-C is the command's, not ours; set after the start, since a child inherits what is ignored.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(2)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return 124
        finally:
            signal.signal(signal.SIGINT, before)

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


def node_command(node: NetnsNode, argv: Sequence[str]) -> list[str]:
    """The command line that runs ``argv`` inside a node (also of an interactive shell)."""
    import sys

    return [sys.executable, "-m", "fabtest.runtime.enter", str(node.netns), str(node.folder), "--", *argv]


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


class NetnsRuntime:
    """Implements Runtime."""

    name = "netns"

    def deploy(self, fabric: Fabric, source: str, name: str, progress: Progress) -> NetnsLab:
        """Bring a fabric up under a lab name. The caller holds the lab's lock. On any failure, or an interrupt,
        what was built is taken down again."""
        namespaces.prepare()
        os.umask(0o022)  # FRR reads its files as another user
        for daemon, package in (("redis-server", "redis-server"), ("zebra", "frr"), ("bgpd", "frr"), ("vtysh", "frr")):
            program(daemon, package)
        folder = LabFolder(name)
        if folder.exists() or name in namespaces.existing():
            record = folder.read()
            if record and record.state == "up":
                raise LabError(f"lab {name} is already up", hint=f"`lab-down --lab {name}` first, or choose --name")
            self.destroy(name)
        try:
            return _Deployment(folder, fabric, source, progress).run()
        except BaseException as error:
            self.destroy(name)
            if isinstance(error, FabtestError | KeyboardInterrupt):
                raise
            if isinstance(error, redis.RedisError):
                raise LabError(f"lab {name} could not be built: {error}") from error
            if isinstance(error, OSError):
                what = f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
                raise MachineError(f"lab {name} could not be built: {what}") from error
            raise

    def attach(self, name: str) -> NetnsLab:
        """A lab that is up. Raises LabError saying what is there instead."""
        from fabtest.topology import load_fabric_text

        folder = LabFolder(name)
        record = folder.read()
        if record is None:
            up = [info.name for info in self.list()]
            hint = f"labs: {', '.join(up)}" if up else "bring one up with `lab-up`"
            raise LabError(f"there is no lab {name}", hint=hint)
        if record.state != "up":
            raise LabError(f"lab {name} is {record.state}", hint=f"`lab-down --lab {name}`, then `lab-up`")
        try:
            source = folder.topology.read_text()
        except OSError:
            raise LabError(f"the files of lab {name} have gone", hint=f"`lab-down {name}` removes the rest") from None
        fabric = load_fabric_text(source, str(folder.topology), default_name=record.topology)
        return NetnsLab(folder, fabric)

    def destroy(self, name: str) -> bool:
        """Everything with the lab's mark: processes, namespaces (and so all links), files."""
        folder = LabFolder(name)
        names = namespaces.existing().get(name, [])
        paths = [namespaces.NETNS_DIR / n for n in names]
        found = bool(names) or folder.exists()
        for _ in range(5):
            ours = processes.of_lab(name, paths)
            if not ours:
                break
            found = True
            agent = agent_pid(name)
            processes.end(ours, gently=() if agent is None else (agent,))
            processes.remove_frr_scratch(ours)
        for n in names:
            namespaces.remove(n)
        if folder.exists():
            folder.delete()
        if HOST_LIMITS.exists() and not [info for info in self.list() if info.name != name]:
            host.give_back(HOST_LIMITS)
        return found

    def list(self) -> list[LabInfo]:
        """Every lab with a folder or a namespace."""
        known = namespaces.existing()
        found: dict[str, LabInfo] = {}
        for folder in folders():
            record = folder.read()
            if record:
                found[folder.name] = LabInfo(
                    folder.name, record.state if folder.name in known else "broken", record.topology, record.switches,
                    record.servers, record.since, record.runtime,
                )  # fmt: skip
            else:
                found[folder.name] = LabInfo(folder.name, "broken", "", 0, 0, "", self.name)
        for name, nodes in known.items():
            found.setdefault(name, LabInfo(name, "broken", "", 0, len(nodes), "", self.name))
        for name in locks_left():
            found.setdefault(name, LabInfo(name, "broken", "", 0, 0, "", self.name))
        return [found[name] for name in sorted(found)]


def start_redis(lab: str, nodes: Iterable[NetnsNode]) -> None:
    """A redis-server per switch, in its namespace, where it is found again; they start while the caller goes on."""
    server = program("redis-server", "redis-server")
    for node in nodes:
        spawn(database.redis_argv(server, node.folder), lab=lab, netns=node.netns, log=node.folder / "redis.log")


def start_routing(
    lab: str, nodes: Sequence[NetnsNode], fabric: Fabric, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """zebra, bgpd and, if asked for, bfdd of each switch: all of one kind before the next, and bgpd tier by tier, so
    that the two ends of a session do not call each other at the same moment. ``meanwhile`` is done between tiers."""
    for node in nodes:
        run = node.folder / "run"
        (node.folder / "scratch").mkdir(exist_ok=True)
        (node.folder / "vtysh.conf").write_text("service integrated-vtysh-config\n")
        for folder in (run, node.folder / "log"):
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, FRR_USER, FRR_USER)
        for stale in run.iterdir():
            stale.unlink()
        for daemon, text in split_by_daemon((node.folder / "frr.conf").read_text()).items():
            (node.folder / f"{daemon}.conf").write_text(text)
    with ThreadPoolExecutor(WORKERS) as pool:

        def start(daemon: str, some: Sequence[NetnsNode]) -> None:
            path = program(daemon, "frr")
            list(pool.map(lambda node: _start_daemon(lab, path, daemon, node), some))

        start("zebra", nodes)
        _wait_for([node.folder / "run" / "zserv.api" for node in nodes])
        if fabric.bgp.bfd:
            start("bfdd", nodes)
        by_tier: dict[Tier, list[NetnsNode]] = {}
        for node in nodes:
            by_tier.setdefault(fabric.switch[node.name].tier, []).append(node)
        ready = 0.0
        for n, tier in enumerate(sorted(by_tier)):
            time.sleep(max(0.0, ready - time.monotonic()))
            start("bgpd", by_tier[tier])
            ready = time.monotonic() + TIER_GAP_S
            if n == 0:
                meanwhile()


def _start_daemon(lab: str, path: str, daemon: str, node: NetnsNode) -> None:
    log = node.folder / "log" / f"{daemon}.out"
    spawn(_frr_argv(path, daemon, node.folder), lab=lab, netns=node.netns, log=log)


def _frr_argv(path: str, daemon: str, folder: Path) -> list[str]:
    run = folder / "run"
    argv = [
        path, "-f", str(folder / f"{daemon}.conf"), "-i", str(run / f"{daemon}.pid"), "-z", str(run / "zserv.api"),
        "--vty_socket", str(run), "-A", "127.0.0.1", "-P", "0",
        "--log", f"file:{folder / 'log' / f'{daemon}.log'}", "--log-level", "informational", "--limit-fds", "1024",
    ]  # fmt: skip
    if daemon == "bfdd":
        argv += ["--bfdctl", str(run / "bfdd.sock")]
    return argv


def _wait_for(paths: Sequence[Path], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    left = list(paths)
    while left:
        left = [p for p in left if not p.exists()]
        if left and time.monotonic() > deadline:
            node = left[0].parent.parent
            out = node / "log" / "zebra.out"
            tail = out.read_text(errors="replace").strip()[-300:] if out.is_file() else ""
            raise LabError(f"zebra of {node.name} does not start", hint=tail or None)
        if left:
            time.sleep(0.02)


def boot_server(fabric: Fabric, server: Server, kernel: NetlinkSocket) -> None:
    """Addresses, routes and rules of a server, in the namespace the thread and the socket are in."""
    network = server_network(fabric, server)
    links = kernel.links()
    batch = Batch()
    batch.set_link("lo", up=True)
    for port in network.ports:
        for address in port.addresses:
            batch.address(links[port.name].index, address)
        batch.set_link(port.name, up=True)
    for route in network.routes:
        batch.route(route.prefix, route.gateway, links[route.port].index, route.table)
    for n, (address, table) in enumerate(network.rules):
        batch.rule(address.ip, table, RULE_PRIORITY + n)
    kernel.run(batch, ignore=frozenset({17}))


class _Deployment:
    """One ``deploy``: the stages, in order."""

    def __init__(self, folder: LabFolder, fabric: Fabric, source: str, progress: Progress) -> None:
        self.folder = folder
        self.lab = folder.name
        self.fabric = fabric
        self.source = source
        self.progress = progress
        self.live = NetnsLab(folder, fabric)
        self.switches = [self.live.node(s.name) for s in fabric.switches]

    def run(self) -> NetnsLab:
        record = LabRecord(
            self.lab, self.fabric.name, "building", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "netns",
            len(self.fabric.switches), len(self.fabric.servers),
        )  # fmt: skip
        self.folder.write(record)
        self.folder.topology.write_text(self.source)
        self.progress("files", 0, len(self.fabric.node_names))
        write_tree(self.fabric, self.folder.nodes)
        host.make_room(self.fabric, HOST_LIMITS)
        self._namespaces()
        start_redis(self.lab, self.switches)
        self._links()
        self._interfaces()
        early = len(self.switches) > OVERLAP_SWITCHES
        if early:
            self._databases()
        self.progress("routing", 0, len(self.switches))
        start_routing(self.lab, self.switches, self.fabric, (lambda: None) if early else self._databases)
        self.progress("agent", 0, 1)
        start_agent(self.lab)
        record.state = "up"
        self.folder.write(record)
        processes.forget_children()
        return self.live

    def _each(self, stage: str, items: Sequence[Any], work: Callable[[Any], None]) -> None:
        """Work on items by a few threads; the first failure ends it."""
        self.progress(stage, 0, len(items))
        with ThreadPoolExecutor(WORKERS) as pool:
            for n, _ in enumerate(pool.map(work, items), 1):
                self.progress(stage, n, len(items))

    def _namespaces(self) -> None:
        v6 = 6 in self.fabric.families or self.fabric.unnumbered

        def make(name: str) -> None:
            namespaces.create(self.lab, name)
            switch = name in self.fabric.switch
            values: dict[str, int | str] = {**({} if v6 else NO_IPV6), **(SWITCH_SYSCTLS if switch else SYSCTLS)}
            if v6 and not switch:
                values["net.ipv6.conf.default.accept_dad"] = 0
            with inside(namespace_path(self.lab, name)):
                namespaces.write_sysctls(values)

        self._each("namespaces", self.fabric.node_names, make)

    def _links(self) -> None:
        self.progress("links", 0, len(self.fabric.links))
        handles = {n: os.open(namespace_path(self.lab, n), os.O_RDONLY | os.O_CLOEXEC) for n in self.fabric.node_names}
        try:
            with NetlinkSocket() as kernel:
                for first in range(0, len(self.fabric.links), 64):
                    batch = Batch()
                    for link in self.fabric.links[first : first + 64]:
                        batch.veth(self._end(link.a, link, handles), self._end(link.b, link, handles))
                    kernel.run(batch)
                    self.progress("links", min(first + 64, len(self.fabric.links)), len(self.fabric.links))
        finally:
            for handle in handles.values():
                os.close(handle)

    def _end(self, end: Endpoint, link: Link, handles: dict[str, int]) -> VethEnd:
        switch = self.fabric.switch.get(end.node)
        if switch is not None:
            mac = switch.mac
        else:
            mac = next(p.mac for p in self.fabric.server[end.node].ports if p.name == end.port)
        return VethEnd(handles[end.node], end.port, mac, link.mtu)

    def _interfaces(self) -> None:
        def boot(name: str) -> None:
            with inside(namespace_path(self.lab, name)), NetlinkSocket() as kernel:
                switch = self.fabric.switch.get(name)
                if switch is None:
                    boot_server(self.fabric, self.fabric.server[name], kernel)
                else:
                    self._boot_switch(switch, kernel)

        self._each("interfaces", self.fabric.node_names, boot)

    def _boot_switch(self, switch: Switch, kernel: NetlinkSocket) -> None:
        batch = Batch()
        batch.set_link("lo", up=True)
        kernel.run(batch)
        intent = switch_intent(database.read_config_file(self.folder.node(switch.name) / "config_db.json"))
        apply_intent(intent, kernel, ())
        apply_hash(intent, switch.hash.seed)

    def _databases(self) -> None:
        def fill(node: NetnsNode) -> None:
            database.wait_ready(node.folder)
            database.load_config(node.folder, database.read_config_file(node.folder / "config_db.json"))

        self._each("routing", self.switches, fill)


def start_agent(lab: str) -> None:
    """The lab's agent; it says that it runs by writing ``agent.ready``. Raises LabError if it does not."""
    import sys

    folder = LabFolder(lab)
    (folder.path / "agent.ready").unlink(missing_ok=True)
    os.umask(0o022)
    spawn([sys.executable, "-m", "fabtest.litenode", lab], lab=lab, log=folder.path / "agent.out")
    deadline = time.monotonic() + 15
    while agent_pid(lab) is None:
        if time.monotonic() > deadline:
            out = folder.path / "agent.out"
            tail = out.read_text(errors="replace")[-400:] if out.is_file() else ""
            raise LabError(f"the agent of lab {lab} does not start", hint=tail or None)
        time.sleep(0.02)


def agent_pid(lab: str) -> int | None:
    """The agent's process, if it runs."""
    try:
        pid = int((LabFolder(lab).path / "agent.ready").read_text())
    except (OSError, ValueError):
        return None
    return pid if processes.belongs(pid, lab) else None
