"""Starting what runs in the nodes of a namespace lab: redis, FRR, the addresses of a server, the lab's agent."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fabtest.errors import ExecError, LabError
from fabtest.litenode import database
from fabtest.model import Fabric, Server, Tier
from fabtest.render.server import RULE_PRIORITY, server_network
from fabtest.runtime import processes
from fabtest.runtime.netlink import Batch, NetlinkSocket, hasten_neighbours
from fabtest.runtime.node import NetnsNode
from fabtest.runtime.priority import set_nice
from fabtest.runtime.processes import program, spawn
from fabtest.runtime.state import LabFolder
from fabtest.runtime.vty import vty, vty_json
from fabtest.sonic.lite_frr import split_by_daemon, uses_bfd

WORKERS = 8
#: Names of loopbacks in a config_db.json.
LOOPBACK = re.compile(r'"(Loopback\d{1,5})["|]')
#: FRR gives up root for this user, which its packages make.
FRR_USER = "frr"
#: While a fabric comes up there is more to do than processors to do it. What is computed from the most input goes last,
#: so that it is computed once: the bgpds of a tier yield to the tier above, whose routes they wait for, and zebras to
#: every bgpd, since each next hop that comes later is another update of the kernel's route.
NICE_PER_TIER, NICE_ZEBRA = 7, 15
#: How long the daemons of a lab may take to start, all of a kind together.
START_S = 60.0
#: How long the tier above waits for a tier's first calls; one to a neighbour out of reach never ends.
FIRST_CALL_S = 2.0


def start_redis(lab: str, nodes: Iterable[NetnsNode]) -> None:
    """A redis-server per switch, in its namespace, where it is found again; they start while the caller goes on."""
    server = program("redis-server", "redis-server")
    for node in nodes:
        spawn(database.redis_argv(server, node.folder), lab=lab, netns=node.netns, log=node.folder / "redis.log")


def prepare_routing(nodes: Iterable[NetnsNode]) -> None:
    """The folders and files that a switch's routing daemons start from, made of its ``frr.conf``."""
    for node in nodes:
        run = node.folder / "run"
        (node.folder / "scratch").mkdir(exist_ok=True)
        (node.folder / "vtysh.conf").write_text("service integrated-vtysh-config\n")
        for folder in (run, node.folder / "log"):
            folder.mkdir(exist_ok=True)
            shutil.chown(folder, FRR_USER, FRR_USER)
        for stale in (*run.iterdir(), *node.folder.glob("frr.applied"), *node.folder.glob("frr.refused")):
            stale.unlink()
        conf = (node.folder / "frr.conf").read_text(errors="replace")
        texts = split_by_daemon(conf, loopbacks_of(node.folder))
        if not uses_bfd(conf):
            del texts["bfdd"]
            (node.folder / "bfdd.conf").unlink(missing_ok=True)
        for daemon, text in texts.items():
            (node.folder / f"{daemon}.conf").write_text(text)


def start_zebra(lab: str, node: NetnsNode, nice: int = NICE_ZEBRA) -> int:
    """zebra of a switch whose interfaces are there; it starts while the caller goes on. Its pid."""
    return _start_daemon(lab, "zebra", node, nice)


def start_routing(lab: str, nodes: Sequence[NetnsNode], fabric: Fabric, zebras: Mapping[str, int]) -> None:
    """bgpd and, if asked for, bfdd of each switch, once its zebra (pid by node) runs.

    bgpds start tier by tier, the next when all of one listen and have called in vain: so no two ends call each other at
    the same moment (a connection collision, RFC 4271 6.8, costs seconds), and a tier's sessions come up at once.
    Several nodes' daemons yield to each other until ``settle``.
    """
    with ThreadPoolExecutor(WORKERS) as pool:

        def start(daemon: str, some: Sequence[NetnsNode], nice: int = 0) -> dict[str, int]:
            pids = pool.map(lambda node: _start_daemon(lab, daemon, node, nice), some)
            return dict(zip((node.name for node in some), pids, strict=True))

        def wait(daemon: str, some: Sequence[NetnsNode], pids: Mapping[str, int]) -> None:
            deadline = time.monotonic() + START_S
            list(pool.map(lambda node: _wait_for(daemon, node, pids[node.name], deadline), some))

        wait("zebra", nodes, zebras)
        start("bfdd", [node for node in nodes if (node.folder / "bfdd.conf").exists()])
        by_tier: dict[Tier, list[NetnsNode]] = {}
        for node in nodes:
            by_tier.setdefault(fabric.switch[node.name].tier, []).append(node)
        tiers = sorted(by_tier)
        for above, tier in zip(reversed(range(len(tiers))), tiers, strict=True):
            bgpds = start("bgpd", by_tier[tier], NICE_PER_TIER * above)
            if above:
                wait("bgpd", by_tier[tier], bgpds)
                list(pool.map(partial(_wait_for_first_calls, time.monotonic() + FIRST_CALL_S), by_tier[tier]))


def loopbacks_of(folder: Path) -> list[str]:
    """Names of the loopbacks of a node."""
    return sorted(set(LOOPBACK.findall((folder / "config_db.json").read_bytes().decode(errors="replace"))))


def _start_daemon(lab: str, daemon: str, node: NetnsNode, nice: int) -> int:
    path = program(daemon, "frr")
    log = node.folder / "log" / f"{daemon}.out"
    pid = spawn(_frr_argv(path, daemon, node.folder), lab=lab, netns=node.netns, log=log)
    if nice:
        set_nice(pid, nice)
    return pid


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


def _wait_for(daemon: str, node: NetnsNode, pid: int, deadline: float) -> None:
    """Until a daemon has read its configuration: it answers then, and listens. Raises LabError, at once if it ended."""
    while True:
        over = processes.ended(pid) or time.monotonic() > deadline
        try:
            vty(node.folder / "run" / f"{daemon}.vty", "show version", max(0.1, deadline - time.monotonic()))
            return
        except ExecError:
            if over:
                out = node.folder / "log" / f"{daemon}.out"
                tail = out.read_text(errors="replace").strip()[-300:] if out.is_file() else ""
                raise LabError(f"{daemon} of {node.name} does not start", hint=tail or None) from None
            time.sleep(0.02)


def _wait_for_first_calls(deadline: float, node: NetnsNode) -> None:
    """Until a bgpd has called each neighbour it can reach, and waits for its connect timer now or has a session.

    A neighbour is called once zebra has told bgpd that its address is reachable ("valid").
    """
    socket = node.folder / "run" / "bgpd.vty"
    while time.monotonic() < deadline:
        summary = vty_json(socket, "show bgp summary json", START_S)
        peers = [peer for family in summary.values() for peer in family.get("peers", {}).values()]
        calling = any(peer.get("state") == "Connect" for peer in peers)
        if not calling and " invalid" not in vty(socket, "show bgp nexthop", START_S):
            return
        time.sleep(0.02)


def boot_server(fabric: Fabric, server: Server, kernel: NetlinkSocket) -> None:
    """Addresses, routes and rules of a server, in the namespace the thread and the socket are in."""
    network = server_network(fabric, server)
    links = kernel.links()
    hasten_neighbours(kernel, [links[port.name].index for port in network.ports])
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


def start_agent(lab: str) -> None:
    """The lab's agent; it says that it runs by writing ``agent.ready``. Raises LabError if it does not."""
    import sys

    folder = LabFolder(lab)
    (folder.path / "agent.ready").unlink(missing_ok=True)
    os.umask(0o022)
    pid = spawn([sys.executable, "-m", "fabtest.litenode", lab], lab=lab, log=folder.path / "agent.out")
    deadline = time.monotonic() + 120  # among a hundred switches that all start it takes its time
    while agent_pid(lab) is None:
        if time.monotonic() > deadline or processes.ended(pid):
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
