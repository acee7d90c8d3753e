"""Labs of network namespaces: lite SONiC switches and servers, on one kernel, with nothing to download.

Order of a deploy, which is what makes it fast: all namespaces and links, and the files meanwhile; all redis-servers;
all addresses and routes, every interface up, servers' first; a switch's zebra starts when its own are; CONFIG_DB is
filled while they do; then the bgpds, tier by tier; then the agent. No session is tried before its peer's address
exists. Until the fabric has converged, daemons yield to those whose routes they wait for (boot.NICE_PER_TIER).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from fabtest.errors import FabtestError, LabError, MachineError
from fabtest.litenode import database
from fabtest.litenode.intent import switch_intent
from fabtest.litenode.kernel import apply_hash, apply_intent, hash_by_qp, managed
from fabtest.model import Endpoint, Fabric, Link, Switch
from fabtest.render import iter_files, write_tree
from fabtest.render.server import SYSCTLS
from fabtest.runtime import host, namespaces, processes
from fabtest.runtime.base import LabInfo, Progress
from fabtest.runtime.boot import (
    WORKERS,
    agent_pid,
    boot_server,
    prepare_routing,
    start_agent,
    start_redis,
    start_routing,
    start_zebra,
)
from fabtest.runtime.lab import NetnsLab
from fabtest.runtime.live import stored_lab
from fabtest.runtime.namespaces import inside, namespace_path
from fabtest.runtime.netlink import Batch, NetlinkSocket, VethEnd, hasten_neighbours
from fabtest.runtime.node import NetnsNode
from fabtest.runtime.processes import program
from fabtest.runtime.state import HOST_LIMITS, LabFolder, LabRecord, folders, locks_left
from fabtest.sonic.sysctl import SWITCH_SYSCTLS

NO_IPV6 = {"net.ipv6.conf.all.disable_ipv6": 1, "net.ipv6.conf.default.disable_ipv6": 1}


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
            if record and record.runtime != self.name:
                raise LabError(
                    f"lab {name} is already there, as {record.runtime}", hint=f"`lab-down {name}` first, or --name"
                )
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
        return NetnsLab(*stored_lab(name, [info.name for info in self.list()]))

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
        if HOST_LIMITS.exists() and not [f for f in folders() if f.name != name]:
            host.give_back(HOST_LIMITS)
        return found

    def list(self) -> list[LabInfo]:
        """Every lab with a folder or a namespace."""
        known = namespaces.existing()
        found: dict[str, LabInfo] = {}
        for folder in folders():
            record = folder.read()
            if record and record.runtime != self.name:
                continue
            if record:
                found[folder.name] = LabInfo(
                    folder.name, record.state if folder.name in known else "broken", record.topology, record.switches,
                    record.servers, record.since, record.runtime,
                )  # fmt: skip
            else:
                found[folder.name] = LabInfo(folder.name, "broken", "", 0, 0, "", self.name)
        for name, nodes in known.items():
            found.setdefault(name, LabInfo(name, "broken", "", 0, len(nodes), "", self.name))
        for name in locks_left():  # of commands that were killed before they made a folder
            found.setdefault(name, LabInfo(name, "broken", "", 0, 0, "", self.name))
        return [found[name] for name in sorted(found)]


class _Deployment:
    """One ``deploy``: the stages, in order."""

    def __init__(self, folder: LabFolder, fabric: Fabric, source: str, progress: Progress) -> None:
        self.folder = folder
        self.lab = folder.name
        self.fabric = fabric
        self.source = source
        self.progress = progress
        self.live = NetnsLab(folder, fabric)
        self.switches = [self.live.netns_node(s.name) for s in fabric.switches]
        self.zebras: dict[str, int] = {}

    def run(self) -> NetnsLab:
        record = LabRecord(
            self.lab, self.fabric.name, "building", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "netns",
            len(self.fabric.switches), len(self.fabric.servers),
        )  # fmt: skip
        self.folder.write(record)
        self.folder.keep(self.fabric, self.source)
        host.make_room(self.fabric, HOST_LIMITS)
        with ThreadPoolExecutor(1) as meanwhile:  # the kernel makes namespaces and links, and Python has time
            files = meanwhile.submit(self._files)
            self._namespaces()
            self._links()
            self.progress("files", 0, len(self.fabric.node_names))
            files.result()
        start_redis(self.lab, self.switches)
        self._interfaces()
        self._databases()
        start_routing(self.lab, self.switches, self.fabric, self.zebras)
        self.progress("agent", 0, 1)
        start_agent(self.lab)
        record.state = "up"
        self.folder.write(record)
        processes.forget_children()
        return self.live

    def _files(self) -> None:
        write_tree(iter_files(self.fabric), self.folder.nodes)
        prepare_routing(self.switches)

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
                    return
                self._boot_switch(switch, kernel)
            self.zebras[name] = start_zebra(self.lab, self.live.netns_node(name))

        servers = [server.name for server in self.fabric.servers]
        self._each("interfaces", [*servers, *self.fabric.switch], boot)
        self._activate()

    def _activate(self) -> None:
        """Every carrier has come; no interface drops what it sends any more, and each zebra is told."""
        ports: dict[str, Batch] = {name: Batch() for name in self.fabric.node_names}
        for end in self.fabric.link_at:
            ports[end.node].activate(end.port)

        def activate(name: str) -> None:
            with inside(namespace_path(self.lab, name)), NetlinkSocket() as kernel:
                kernel.run(ports[name])

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(activate, ports))

    def _boot_switch(self, switch: Switch, kernel: NetlinkSocket) -> None:
        batch = Batch()
        batch.set_link("lo", up=True)
        kernel.run(batch)
        intent = switch_intent(database.read_config_file(self.folder.node(switch.name) / "config_db.json"))
        apply_intent(intent, kernel, ())
        hasten_neighbours(kernel, [link.index for name, link in kernel.links().items() if managed(name)])
        apply_hash(intent, switch.hash.seed, qp_hash=self.fabric.qp_hash)
        if self.fabric.qp_hash:
            hash_by_qp(kernel, switch.hash.seed)

    def _databases(self) -> None:
        def fill(node: NetnsNode) -> None:
            database.wait_ready(node.folder)
            database.load_config(node.folder, database.read_config_file(node.folder / "config_db.json"))

        self._each("routing", self.switches, fill)
