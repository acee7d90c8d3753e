"""One process that plays SONiC's manager and sync daemons for every switch of a lab, or for the one it runs in.

It is driven by events: Redis keyspace notifications (CONFIG_DB changed), netlink (links, addresses, routes,
neighbours changed) and LLDP frames; timers cover port counters, BGP and BFD state, and LLDP hellos. Nothing it does
is needed for forwarding, so it can be killed and started again at any time: it reads everything afresh and writes
only what differs.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hiredis
import redis

from fabtest.errors import ExecError, FabtestError
from fabtest.litenode import lldp, publish
from fabtest.litenode.database import INITIALIZED, client, read_config
from fabtest.litenode.intent import TABLES, SwitchIntent, switch_intent
from fabtest.litenode.kernel import apply_hash, apply_intent
from fabtest.litenode.routing import RoutingFollower
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import (
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV4_ROUTE,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK,
    RTMGRP_NEIGH,
    LinkInfo,
    NetlinkSocket,
)
from fabtest.runtime.priority import set_nice
from fabtest.runtime.vty import vty_json
from fabtest.sonic.db import DbId
from fabtest.sonic.routing_config import ROUTING_TABLES

log = logging.getLogger("fabtest.agent")

GROUPS = (
    RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_IFADDR | RTMGRP_IPV6_ROUTE
)  # fmt: skip
#: Seconds of quiet after which a burst of events is read, and the longest time it may put that off. Routes and
#: neighbours of large labs come in long bursts, and reading them costs what BGP needs to converge.
SETTLE = {"config": (0.02, 0.1), "links": (0.01, 0.05), "routes": (0.2, 6.0), "neighbours": (0.2, 6.0)}
#: Ports whose counters are read per second at most; larger labs are polled less often.
COUNTER_PORTS_PER_S = 1500
BGP_NODES_PER_S = 40


@dataclass(slots=True)
class _Written:
    """What a database holds of ours: key -> row."""

    rows: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of a node are: its network, the folder of its ``redis.sock``, that of its daemons' vty sockets.

    ``ports`` is how many of its ports are cabled; a server has LLDP only, and needs neither folder.
    """

    name: str
    is_switch: bool
    netns: Path
    redis: Path
    vty: Path
    ports: int


class Node:
    """What the agent keeps of one node."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = place.name
        self.is_switch = place.is_switch
        self.folder = place.redis
        self.netns = place.netns
        with inside(self.netns):
            self.events = NetlinkSocket(GROUPS if self.is_switch else RTMGRP_LINK)
            self.kernel = NetlinkSocket()
            self.wire = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.htons(lldp.ETHERTYPE)
            )
        self.wire.setblocking(False)
        self.links: dict[str, LinkInfo] = {}
        self.intent: SwitchIntent | None = None
        self.config: dict[str, Any] = {}
        self.history: dict[str, publish.PortHistory] = {}
        self.neighbours: dict[str, tuple[lldp.Neighbour, float]] = {}
        self.written: dict[tuple[DbId, str], _Written] = {}
        self.due: dict[str, tuple[float, float]] = {}
        self.pubsub: socket.socket | None = None
        self.reader: Any = None
        self.warned: set[str] = set()
        self.hashed: object = None
        self.counted: tuple[float, dict[str, LinkInfo]] | None = None

    def soon(self, what: str, now: float) -> None:
        """Have a look at something once its burst has settled."""
        quiet, longest = SETTLE[what]
        _, limit = self.due.get(what, (0.0, now + longest))
        self.due[what] = (min(now + quiet, limit), limit)

    def port_named(self, index: int) -> str:
        return next((n for n, link in self.links.items() if link.index == index), "")

    def warn(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            log.warning("%s: %s", self.name, text)


class Agent:
    """The loop over the nodes of a lab (``name``), or over the one it runs in.

    ``cut`` tells which ports of a node a fault holds down; ``ready`` is written once the agent listens; ``ahead`` is
    called with an intent before the kernel is brought in line with it.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        name: str,
        ready: Path,
        bfd: bool,
        qp_hash: bool,
        cut: Callable[[str], set[str]] = lambda name: set(),
        ahead: Callable[[SwitchIntent], None] = lambda intent: None,
    ) -> None:
        self.places = places
        self.name = name
        self.ready = ready
        self.bfd = bfd
        self.qp_hash = qp_hash
        self.cut = cut
        self.ahead = ahead
        self.selector = selectors.DefaultSelector()
        self.nodes: dict[str, Node] = {}
        self.running = True
        self.timers: list[tuple[float, float, Callable[[], None]]] = []
        self._retry: list[Node] = []
        self.routing = RoutingFollower()
        self._hello_at: dict[str, float] = {}

    def run(self) -> None:
        """Until SIGTERM."""
        self.ready.write_text(f"{os.getpid()}\n")
        set_nice(os.getpid(), 10)  # forwarding and BGP come first
        now = time.monotonic()
        for place in self.places:
            node = Node(place)
            self.nodes[node.name] = node
            self.selector.register(node.events, selectors.EVENT_READ, (self._on_netlink, node))
            self.selector.register(node.wire, selectors.EVENT_READ, (self._on_lldp, node))
            self._hello_at[node.name] = now
            if not node.is_switch:
                node.links = node.kernel.links()
                self._hello(node, node.links)
        for node in self.switches():
            self._connect(node)
        switches = len(self.switches())
        log.info("agent of %s: %d switches, %d servers", self.name, switches, len(self.nodes) - switches)
        ports = sum(place.ports for place in self.places if place.is_switch)
        self._every(max(1.0, ports / COUNTER_PORTS_PER_S), self._counters)
        self._every(max(1.0, switches / BGP_NODES_PER_S), self._sessions)
        self._every(1.0, self._reconnect)
        self._every(1.0, self._hellos)
        while self.running:
            self._turn()
        self._close()

    def _close(self) -> None:
        """Close the packet sockets side by side: the kernel waits a grace period (some 10 ms) for each."""
        self.routing.close()
        with ThreadPoolExecutor(64) as pool:
            list(pool.map(lambda node: node.wire.close(), self.nodes.values()))

    def switches(self) -> list[Node]:
        """The nodes that are switches."""
        return [n for n in self.nodes.values() if n.is_switch]

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        self.timers.append((time.monotonic() + seconds, seconds, action))

    def _turn(self) -> None:
        now = time.monotonic()
        wake = min((at for at, _, _ in self.timers), default=now + 1)
        for node in self.nodes.values():
            if node.due:
                wake = min(wake, *(at for at, _ in node.due.values()))
        for key, _ in self.selector.select(max(0.0, min(wake - now, 1.0))):
            handler, node = key.data
            self._guarded(node, handler, node)
        now = time.monotonic()
        for node in self.nodes.values():
            if not self.running:
                return
            for what in [w for w, (at, _) in node.due.items() if at <= now]:
                del node.due[what]
                self._guarded(node, {
                    "config": self._apply, "links": self._publish_ports, "routes": self._publish_routes,
                    "neighbours": self._publish_neighbours,
                }[what], node)  # fmt: skip
        for i, (at, period, action) in enumerate(self.timers):
            if at <= now:
                self.timers[i] = (now + period, period, action)
                try:
                    action()
                except Exception:
                    log.exception("unexpected")

    def _guarded(self, node: Node, action: Callable[[Node], None], argument: Node) -> None:
        """One node's trouble (its Redis gone, its namespace going) must not stop the others."""
        try:
            action(argument)
        except (redis.RedisError, OSError) as error:
            log.info("%s: %s", node.name, error)
            self._disconnect(node)
        except FabtestError as error:
            log.warning("%s: %s", node.name, error.message)
        except Exception:
            log.exception("%s: unexpected", node.name)

    # ------------------------------------------------------------------------------------------------- Redis

    def _connect(self, node: Node) -> None:
        """Subscribe to CONFIG_DB and publish everything from the beginning."""
        pubsub = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            pubsub.settimeout(1)
            pubsub.connect(str(node.folder / "redis.sock"))
            pubsub.sendall(
                b"PSUBSCRIBE __keyspace@%d__:* __keyspace@%d__:SWITCH_TABLE:*\r\n"
                % (DbId.CONFIG.number, DbId.APPL.number)
            )
        except OSError:
            pubsub.close()
            return
        pubsub.setblocking(False)
        node.pubsub, node.reader = pubsub, hiredis.Reader()
        node.written.clear()
        node.hashed = None
        self.selector.register(pubsub, selectors.EVENT_READ, (self._on_config, node))
        self._guarded(node, self._everything, node)

    def _disconnect(self, node: Node) -> None:
        if node.pubsub is not None:
            self.selector.unregister(node.pubsub)
            node.pubsub.close()
            node.pubsub = None

    def _reconnect(self) -> None:
        for node in self._retry:
            node.soon("config", time.monotonic())
        self._retry.clear()
        for node in self.switches():
            if node.pubsub is None:
                self._connect(node)

    def _everything(self, node: Node) -> None:
        self._forget_strays(node)
        self._apply(node)
        self._publish_routes(node)
        self._publish_neighbours(node)
        self._write(node, DbId.STATE, "SWITCH_CAPABILITY", publish.switch_capability())

    def _forget_strays(self, node: Node) -> None:
        """After a restart: learn what an earlier agent wrote, so that rows without a cause are removed."""
        for db, tables in (
            (DbId.APPL, ("PORT_TABLE", "INTF_TABLE", "ROUTE_TABLE", "NEIGH_TABLE", "LLDP_ENTRY_TABLE", "VLAN_TABLE",
                         "VLAN_MEMBER_TABLE", "BUFFER")),
            (DbId.STATE, ("PORT_TABLE", "INTERFACE_TABLE", "NEIGH_STATE_TABLE", "BFD_SESSION_TABLE", "VLAN_TABLE",
                          "VLAN_MEMBER_TABLE")),
        ):  # fmt: skip
            connection = client(node.folder, db)
            keys = connection.keys("*")
            for table in tables:
                group = _GROUP.get(table, table)
                found = node.written.setdefault((db, group), _Written()).rows
                mine = [k for k in keys if k.startswith(table if table == "BUFFER" else table + db.separator)]
                for key in mine:
                    found[key] = connection.hgetall(key)
        for key, row in node.written[(DbId.APPL, "PORT_TABLE")].rows.items():
            if "flap_count" in row:
                node.history[key.partition(":")[2]] = publish.PortHistory(
                    int(row["flap_count"] or 0), row.get("last_up_time", ""), row.get("last_down_time", "")
                )

    def _write(self, node: Node, db: DbId, group: str, rows: publish.Rows) -> None:
        """Make a group of keys of a database be exactly ``rows``."""
        known = node.written.setdefault((db, group), _Written()).rows
        gone = known.keys() - rows.keys()
        changed = {key: row for key, row in rows.items() if known.get(key) != row}
        if not gone and not changed:
            return
        with client(node.folder, db).pipeline(transaction=False) as pipe:
            for key in gone:
                pipe.delete(key)
            for key, row in changed.items():
                stale = known.get(key, {}).keys() - row.keys()
                if stale:
                    pipe.hdel(key, *stale)
                if row:
                    pipe.hset(key, mapping=row)
            pipe.execute()
        for key in gone:
            del known[key]
        known.update(changed)

    def _on_config(self, node: Node) -> None:
        assert node.pubsub is not None
        data = node.pubsub.recv(65536)
        if not data:
            raise OSError(0, "redis closed the connection")
        node.reader.feed(data)
        prefix = b"__keyspace@%d__:" % DbId.CONFIG.number
        while (message := node.reader.gets()) is not False:
            if not isinstance(message, list) or message[0] != b"pmessage":
                continue
            key = bytes(message[2]).removeprefix(prefix).decode(errors="replace")
            table = key.partition("|")[0]
            if (
                table in TABLES
                or table in ROUTING_TABLES
                or table in publish.BUFFER_TABLES
                or table == INITIALIZED
                or "SWITCH_TABLE" in key
            ):
                node.soon("config", time.monotonic())

    # ------------------------------------------------------------------------------------------------ kernel

    def _apply(self, node: Node) -> None:
        """CONFIG_DB to the kernel, and what follows from it to the other databases. One that is still being filled
        is left alone: its end is announced by a key of its own."""
        if client(node.folder, DbId.CONFIG).get(INITIALIZED) != "1":
            return
        node.config = read_config(client(node.folder, DbId.CONFIG), (*TABLES, *publish.BUFFER_TABLES))
        node.intent = intent = switch_intent(node.config)
        for warning in intent.warnings:
            node.warn(warning)
        try:
            self.ahead(intent)
            if apply_intent(intent, node.kernel, self.cut(node.name)):
                log.info("%s: kernel brought in line with CONFIG_DB", node.name)
        except (FabtestError, ValueError) as error:  # one row the kernel refuses must not stop the others' publishing
            node.warn(str(error))
            self._retry.append(node)
        seed = client(node.folder, DbId.APPL).hget("SWITCH_TABLE:switch", "ecmp_hash_seed")
        wanted = (intent.hash, seed)
        if node.hashed != wanted:
            with inside(node.netns):
                number = int(seed) if seed and str(seed).isdigit() else None
                for warning in apply_hash(intent, number, qp_hash=self.qp_hash):
                    node.warn(warning)
            node.hashed = wanted
        appl, state = publish.interface_tables(intent)
        self._write(node, DbId.APPL, "INTF_TABLE", appl)
        self._write(node, DbId.STATE, "INTERFACE_TABLE", state)
        appl, state = publish.vlan_tables(intent)
        self._write(node, DbId.APPL, "VLAN", appl)
        self._write(node, DbId.STATE, "VLAN", state)
        self._write(node, DbId.APPL, "BUFFER", publish.buffer_tables(node.config))
        self._publish_ports(node)
        self.routing.follow(node.name, node.folder, node.place.vty, node.config)

    def _on_netlink(self, node: Node) -> None:
        now = time.monotonic()
        try:
            kinds = {kind for kind, _ in node.events.events()}
        except OSError:  # ENOBUFS: some were lost, so look at everything
            kinds = {RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWNEIGH}
        if kinds & {RTM_NEWLINK, RTM_DELLINK}:
            node.soon("links", now)
        if not node.is_switch:
            return
        if kinds & {RTM_NEWROUTE, RTM_DELROUTE}:
            node.soon("routes", now)
        if kinds & {RTM_NEWNEIGH, RTM_DELNEIGH}:
            node.soon("neighbours", now)

    def _publish_ports(self, node: Node) -> None:
        links = node.kernel.links()
        came_up = {}
        for name, link in links.items():
            before = node.links.get(name)
            up, was = link.up and link.running, bool(before and before.up and before.running)
            if up != was and node.is_switch:  # the kernel does not announce the IPv4 routes that go with a port
                node.soon("routes", time.monotonic())
            if up != was or before is None:
                past = node.history.setdefault(name, publish.PortHistory())
                stamp = time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime())
                if before is not None:
                    past.flaps += 1
                if up:
                    past.last_up = stamp
                    came_up[name] = link
                elif before is not None:
                    past.last_down = stamp
            if not up:
                node.neighbours.pop(name, None)
        node.links = links
        if came_up:
            self._hello(node, came_up)
        if node.is_switch and node.pubsub is not None:
            appl, state = publish.port_tables(node.config, links, node.history)
            self._write(node, DbId.APPL, "PORT_TABLE", appl)
            self._write(node, DbId.STATE, "PORT_TABLE", state)
            self._publish_lldp(node)

    def _names(self, node: Node) -> dict[int, str]:
        return {link.index: name for name, link in node.links.items()}

    def _publish_routes(self, node: Node) -> None:
        if node.pubsub is None:
            return
        routes = [r for family in publish.FAMILIES for r in node.kernel.routes(family)]
        self._write(node, DbId.APPL, "ROUTE_TABLE", publish.route_table(routes, self._names(node)))

    def _publish_neighbours(self, node: Node) -> None:
        if node.pubsub is not None:
            rows = publish.neighbour_table(node.kernel.neighbours(), self._names(node))
            self._write(node, DbId.APPL, "NEIGH_TABLE", rows)

    # -------------------------------------------------------------------------------------------------- LLDP

    def _hello(self, node: Node, links: dict[str, LinkInfo]) -> None:
        if node.intent is not None and not node.intent.lldp:
            return
        for name, link in links.items():
            if not (link.up and link.running) or not name.startswith("eth" if not node.is_switch else "Ethernet"):
                continue
            alias = str(node.config.get("PORT", {}).get(name, {}).get("alias", name)) if node.is_switch else name
            kind = lldp.BRIDGE_ROUTER if node.is_switch else lldp.STATION
            what = "fabtest lite SONiC node" if node.is_switch else "fabtest server"
            try:
                node.wire.sendto(lldp.frame(link.mac, alias, name, node.name, what, kind), (name, lldp.ETHERTYPE))
            except OSError:
                continue

    def _hellos(self) -> None:
        """Every node says hello each HELLO_S seconds; neighbours not heard of for their TTL are dropped."""
        now = time.monotonic()
        for node in self.nodes.values():
            if now - self._hello_at[node.name] < lldp.HELLO_S:
                continue
            self._hello_at[node.name] = now
            self._hello(node, node.links)
            old = [port for port, (n, heard) in node.neighbours.items() if now - heard > n.ttl]
            for port in old:
                del node.neighbours[port]
            if old and node.is_switch and node.pubsub is not None:
                self._guarded(node, self._publish_lldp, node)

    def _on_lldp(self, node: Node) -> None:
        changed = False
        while True:
            try:
                data, (port, _, kind, *_) = node.wire.recvfrom(2048)
            except BlockingIOError:
                break
            except OSError:
                break
            if kind == socket.PACKET_OUTGOING:
                continue
            neighbour = lldp.parse(data)
            if neighbour is None or (node.is_switch and not port.startswith("Ethernet")):
                continue
            before = node.neighbours.get(port)
            node.neighbours[port] = (neighbour, time.monotonic())
            if before is None or before[0] != neighbour:
                changed = True
                if port in node.links:  # a new neighbour has not heard of us (802.1AB fast start)
                    self._hello(node, {port: node.links[port]})
        if changed and node.is_switch and node.pubsub is not None:
            self._publish_lldp(node)

    def _publish_lldp(self, node: Node) -> None:
        rows = {
            f"LLDP_ENTRY_TABLE:{port}": lldp.entry(n, node.links[port].index if port in node.links else 0, 0)
            for port, (n, _) in node.neighbours.items()
        }
        self._write(node, DbId.APPL, "LLDP_ENTRY_TABLE", rows)

    # ------------------------------------------------------------------------------------------------- timers

    def _counters(self) -> None:
        for node in self.switches():
            if node.pubsub is not None and self.running:
                self._guarded(node, self._publish_counters, node)

    def _publish_counters(self, node: Node) -> None:
        row = client(node.folder, DbId.CONFIG).hget("FLEX_COUNTER_TABLE|PORT", "FLEX_COUNTER_STATUS")
        if row != "enable":
            return
        now, links, ports = time.monotonic(), node.kernel.links(), node.config.get("PORT", {})
        names, rows = publish.counters(links, ports)
        if node.counted is not None:
            then, before = node.counted
            self._write(node, DbId.COUNTERS, "rates", publish.rates(before, links, now - then, ports))
        node.counted = now, links
        self._write(node, DbId.COUNTERS, "names", names)
        self._write(node, DbId.COUNTERS, "counters", rows)

    def _sessions(self) -> None:
        for node in [n for n in self.switches() if n.pubsub is not None]:
            if self.running:
                self._guarded(node, self._publish_sessions, node)

    def _publish_sessions(self, node: Node) -> None:
        """States of BGP and BFD; those of a daemon that does not answer are not known, so their rows go."""
        summary = self._ask(node, "bgpd", "show bgp summary json") or {}
        self._write(node, DbId.STATE, "NEIGH_STATE_TABLE", publish.bgp_tables(summary))
        if self.bfd:
            peers = self._ask(node, "bfdd", "show bfd peers json") or []
            self._write(node, DbId.STATE, "BFD_SESSION_TABLE", publish.bfd_table(peers))

    @staticmethod
    def _ask(node: Node, daemon: str, command: str) -> Any:
        try:
            return vty_json(node.place.vty / f"{daemon}.vty", command, timeout=1.0)
        except ExecError as error:
            node.warn(error.message)
            return None


#: Tables written together, under one name.
_GROUP = {"VLAN_TABLE": "VLAN", "VLAN_MEMBER_TABLE": "VLAN"}


def run(agent: Agent) -> None:
    """The agent until SIGTERM; what ends it otherwise is in its log."""
    signal.signal(signal.SIGTERM, lambda *_: setattr(agent, "running", False))
    try:
        agent.run()
    except Exception:
        log.exception("agent ends")
        raise
