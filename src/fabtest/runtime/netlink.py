"""rtnetlink in batches: the few messages a lab needs, packed and parsed with ``struct``.

A fabric of 128 switches takes 15,000 requests to build and 30,000 routes of 16 next hops to check. pyroute2 0.9
spends 66 us on encoding an address and 90 us or more on decoding a route (measured on 2 cores); this spends a few,
and sends a hundred requests per system call. Constants are those of linux/rtnetlink.h, if_link.h and fib_rules.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address

from fabtest.errors import LabError

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE, NLM_F_APPEND = (
    1, 4, 0x300, 0x100, 0x200, 0x400, 0x800,
)  # fmt: skip
NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
RTM_NEWRULE = 32
RTM_SETNEIGHTBL = 67
NDTA_NAME, NDTA_PARMS, NDTPA_IFINDEX, NDTPA_RETRANS_TIME, NDTPA_MCAST_PROBES = 1, 6, 1, 5, 11
RTM_NEWQDISC, RTM_DELQDISC, RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 36, 37, 44, 45, 46
TC_H_CLSACT, TC_H_CLSACT_INGRESS, CLSACT_HANDLE = 0xFFFFFFF1, 0xFFFFFFF2, 0xFFFF0000
TCA_KIND, TCA_OPTIONS, TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT = 1, 2, 6, 7, 8, 1
RTMGRP_LINK, RTMGRP_NEIGH, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE = 1, 4, 0x10, 0x40
RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE = 0x100, 0x400
IFF_UP, IFF_RUNNING, IFF_ALLMULTI, IFF_LOWER_UP = 1, 0x40, 0x200, 0x10000
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER = 1, 3, 4, 5, 10
IFLA_LINKINFO, IFLA_NET_NS_FD = 18, 28
IFLA_MACVLAN_MODE, MACVLAN_MODE_PASSTHRU = 1, 8
IFLA_STATS64, IFLA_XDP = 23, 43
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFLA_XDP_FD, IFLA_XDP_ATTACHED, IFLA_XDP_FLAGS, XDP_FLAGS_SKB_MODE = 1, 2, 3, 2
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH, RTA_TABLE, RTA_VIA = (
    1, 4, 5, 6, 7, 9, 15, 18,
)  # fmt: skip
FRA_SRC, FRA_PRIORITY, FRA_TABLE = 2, 6, 15
RT_TABLE_MAIN, RT_TABLE_LOCAL = 254, 255
RTPROT_BGP = 186  # FRR's own, zebra/rt_netlink.h
RTN_UNICAST = 1
NLA_NESTED, NLA_TYPE_MASK = 0x8000, 0x3FFF
NUD_REACHABLE, NUD_STALE, NUD_DELAY, NUD_PROBE, NUD_PERMANENT = 2, 4, 8, 0x10, 0x80
NUD_VALID = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT

_HEADER = struct.Struct("=IHHII")
_ATTR = struct.Struct("=HH")
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_NDMSG = struct.Struct("=B3xiHBB")
_NEXTHOP = struct.Struct("=HBBi")
_TCMSG = struct.Struct("=B3xiIII")
#: rx/tx packets, bytes, errors, dropped: the first eight of struct rtnl_link_stats64.
_STATS = struct.Struct("=8Q")

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

#: Errors that a busy kernel gives for a moment (containerlab's list, PR 3102) and that are worth another try.
TRANSIENT = frozenset({errno.EAGAIN, errno.EBUSY, errno.EFAULT, errno.ENOBUFS, errno.EINTR})


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = 4 + len(payload)
    return _ATTR.pack(length, kind) + payload + b"\0" * (-length % 4)


def _text(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def _mac(text: str) -> bytes:
    return attribute(IFLA_ADDRESS, bytes.fromhex(text.replace(":", "")))


@dataclass(frozen=True, slots=True)
class VethEnd:
    """One end of a veth pair to be made: the namespace (an open descriptor), name, MAC and MTU."""

    netns: int
    name: str
    mac: str
    mtu: int


class Batch:
    """Requests that are sent together. ``labels`` says what each was for, in errors."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.labels: list[str] = []

    def __len__(self) -> int:
        return len(self.messages)

    def _add(self, kind: int, flags: int, body: bytes, label: str) -> None:
        total = 16 + len(body)
        self.messages.append(_HEADER.pack(total, kind, flags | NLM_F_REQUEST | NLM_F_ACK, len(self.messages), 0) + body)
        self.labels.append(label)

    def veth(self, a: VethEnd, b: VethEnd) -> None:
        """A pair with each end in its namespace, in one step: there is never half a pair."""
        peer = _IFINFO.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, b.name) + _u32(IFLA_MTU, b.mtu) + _mac(b.mac)
        peer += _u32(IFLA_NET_NS_FD, b.netns)
        info = _text(IFLA_INFO_KIND, "veth") + attribute(IFLA_INFO_DATA, attribute(VETH_INFO_PEER, peer))
        body = _IFINFO.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, a.name) + _u32(IFLA_MTU, a.mtu) + _mac(a.mac)
        body += _u32(IFLA_NET_NS_FD, a.netns) + attribute(IFLA_LINKINFO, info)
        self._add(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"veth {a.name} -- {b.name}")

    def bridge(self, name: str, mac: str, mtu: int) -> None:
        """A bridge: an SVI, or a loopback interface where there is no dummy driver."""
        body = _IFINFO.pack(0, 0, 0, IFF_UP, IFF_UP) + _text(IFLA_IFNAME, name) + _u32(IFLA_MTU, mtu) + _mac(mac)
        body += attribute(IFLA_LINKINFO, _text(IFLA_INFO_KIND, "bridge"))
        self._add(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"bridge {name}")

    def macvlan(self, name: str, lower: int) -> None:
        """All that an interface receives and sends, under another name and with its carrier and MAC (mode passthru)."""
        body = _IFINFO.pack(0, 0, 0, IFF_ALLMULTI, IFF_ALLMULTI) + _text(IFLA_IFNAME, name) + _u32(IFLA_LINK, lower)
        info = _text(IFLA_INFO_KIND, "macvlan")
        info += attribute(IFLA_INFO_DATA, _u32(IFLA_MACVLAN_MODE, MACVLAN_MODE_PASSTHRU))
        body += attribute(IFLA_LINKINFO, info)
        self._add(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"macvlan {name}")

    def delete_link(self, index: int, label: str) -> None:
        """Remove an interface."""
        self._add(RTM_DELLINK, 0, _IFINFO.pack(0, 0, index, 0, 0), f"delete {label}")

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        master: int | None = None,
        mac: str | None = None,
    ) -> None:
        """Change an interface by name; ``master`` 0 takes it out of its bridge."""
        flags, mask = (IFF_UP if up else 0, IFF_UP) if up is not None else (0, 0)
        body = _IFINFO.pack(0, 0, 0, flags, mask) + _text(IFLA_IFNAME, name)
        if mtu is not None:
            body += _u32(IFLA_MTU, mtu)
        if master is not None:
            body += _u32(IFLA_MASTER, master)
        if mac is not None:
            body += _mac(mac)
        self._add(RTM_NEWLINK, 0, body, f"link {name}")

    def set_xdp(self, name: str, program: int) -> None:
        """Attach an XDP program (generic mode) to an interface; -1 takes it off."""
        xdp = attribute(IFLA_XDP_FD, struct.pack("=i", program)) + _u32(IFLA_XDP_FLAGS, XDP_FLAGS_SKB_MODE)
        body = _IFINFO.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, name) + attribute(IFLA_XDP | NLA_NESTED, xdp)
        self._add(RTM_SETLINK, 0, body, f"xdp {name}")

    def clsact(self, index: int, *, add: bool = True) -> None:
        """The qdisc classifiers hang on; removing it removes them."""
        body = _TCMSG.pack(0, index, CLSACT_HANDLE, TC_H_CLSACT, 0) + _text(TCA_KIND, "clsact")
        self._add(RTM_NEWQDISC if add else RTM_DELQDISC, NLM_F_CREATE if add else 0, body, f"clsact on {index}")

    def classifier(self, index: int, priority: int, name: str, program: int, handle: int = 0) -> None:
        """A BPF classifier on what an interface receives, instead of one of the same priority and handle."""
        body = _TCMSG.pack(0, index, handle or 1, TC_H_CLSACT_INGRESS, priority << 16 | socket.htons(3))
        body += _text(TCA_KIND, "bpf")
        options = struct.pack("=HHi", 8, TCA_BPF_FD, program) + _text(TCA_BPF_NAME, name)
        options += _u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT)
        body += attribute(TCA_OPTIONS, options)
        self._add(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, body, f"classifier {name} on {index}")

    def remove_classifier(self, index: int, priority: int, handle: int = 0) -> None:
        """Take a classifier off, or all of a priority (handle 0)."""
        body = _TCMSG.pack(0, index, handle, TC_H_CLSACT_INGRESS, priority << 16 | socket.htons(3))
        self._add(RTM_DELTFILTER, 0, body, f"classifier {priority} on {index}")

    def retransmit(self, index: int, milliseconds: int, times: int) -> None:
        """How long ARP and ND on an interface wait for an answer until they ask again (the kernel: 1 s), and how often
        they ask for a neighbour not known yet (the kernel: 3 times)."""
        for family, table in ((socket.AF_INET, "arp_cache"), (socket.AF_INET6, "ndisc_cache")):
            parameters = _u32(NDTPA_IFINDEX, index)
            parameters += attribute(NDTPA_RETRANS_TIME, struct.pack("=Q", milliseconds))
            parameters += _u32(NDTPA_MCAST_PROBES, times)
            body = struct.pack("=B3x", family) + _text(NDTA_NAME, table) + attribute(NDTA_PARMS, parameters)
            self._add(RTM_SETNEIGHTBL, 0, body, f"retransmission on {index}")

    def activate(self, name: str) -> None:
        """Have the kernel do at once what follows from a carrier that came: activate the interface's queue, tell who
        listens. Else it does that for 200 interfaces soon and for 100 a second then (__linkwatch_run_queue), and
        whatever the others send is dropped. Asking for one link does it (rtnl_getlink, since Linux 6.8)."""
        self._add(RTM_GETLINK, 0, _IFINFO.pack(0, 0, 0, 0, 0) + _text(IFLA_IFNAME, name), f"link {name}")

    def address(self, index: int, interface: Interface, *, add: bool = True) -> None:
        """Add (idempotent) or remove an address."""
        packed = interface.ip.packed
        family = socket.AF_INET if interface.version == 4 else socket.AF_INET6
        # IFA_F_NODAD: a lab's addresses are unique by construction, and must be usable at once.
        body = _IFADDR.pack(family, interface.network.prefixlen, 2 if interface.version == 6 else 0, 0, index)
        body += attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
        kind, flags = (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE) if add else (RTM_DELADDR, 0)
        self._add(kind, flags, body, f"address {interface}")

    def route(self, prefix: Network, gateway: Address, index: int, table: int) -> None:
        """A unicast route through a gateway that is on the link of ``index``."""
        family = socket.AF_INET if prefix.version == 4 else socket.AF_INET6
        body = _RTMSG.pack(family, prefix.prefixlen, 0, 0, min(table, 255), 3, 0, RTN_UNICAST, 0)
        if prefix.prefixlen:
            body += attribute(RTA_DST, prefix.network_address.packed)
        body += attribute(RTA_GATEWAY, gateway.packed) + _u32(RTA_OIF, index) + _u32(RTA_TABLE, table)
        self._add(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body, f"route {prefix} via {gateway}")

    def rule(self, source: Address, table: int, priority: int) -> None:
        """``ip rule add from SOURCE lookup TABLE``."""
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        body = _RTMSG.pack(family, 0, source.max_prefixlen, 0, min(table, 255), 0, 0, 1, 0)
        body += attribute(FRA_SRC, source.packed) + _u32(FRA_PRIORITY, priority) + _u32(FRA_TABLE, table)
        self._add(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, body, f"rule from {source}")


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """An interface as the kernel has it. ``stats``: rx and tx packets, bytes, errors, drops, in that order."""

    index: int
    name: str
    up: bool
    running: bool
    mtu: int
    mac: str
    master: int
    xdp: bool
    stats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddressInfo:
    """An address on an interface."""

    index: int
    interface: Interface


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """A route: ``hops`` are (gateway or None, interface index, weight)."""

    prefix: Network
    table: int
    protocol: int
    kind: int
    hops: tuple[tuple[Address | None, int, int], ...]


@dataclass(frozen=True, slots=True)
class NeighbourInfo:
    """An ARP or ND entry."""

    index: int
    address: Address
    mac: str
    state: int


def attributes(data: bytes | memoryview, offset: int) -> Iterator[tuple[int, memoryview]]:
    """The attributes from ``offset`` on."""
    view = memoryview(data)
    end = len(view)
    while offset + 4 <= end:
        length, kind = _ATTR.unpack_from(view, offset)
        if length < 4:
            return
        yield kind & NLA_TYPE_MASK, view[offset + 4 : offset + length]
        offset += length + 3 & ~3


def parse_link(body: bytes) -> LinkInfo:
    """RTM_NEWLINK or RTM_DELLINK."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    name, mtu, mac, master, xdp = "", 0, "", 0, False
    stats: tuple[int, ...] = (0,) * 8
    for kind, value in attributes(body, 16):
        if kind == IFLA_IFNAME:
            name = bytes(value[:-1]).decode()
        elif kind == IFLA_MTU:
            mtu = int.from_bytes(value, "little")
        elif kind == IFLA_ADDRESS:
            mac = bytes(value).hex(":")
        elif kind == IFLA_MASTER:
            master = int.from_bytes(value, "little")
        elif kind == IFLA_STATS64:
            stats = _STATS.unpack_from(value)
        elif kind == IFLA_XDP:
            xdp = any(k == IFLA_XDP_ATTACHED and v[0] for k, v in attributes(value, 0))
    return LinkInfo(index, name, bool(flags & IFF_UP), bool(flags & IFF_LOWER_UP), mtu, mac, master, xdp, stats)


def parse_address(body: bytes) -> AddressInfo:
    """RTM_NEWADDR or RTM_DELADDR."""
    _, length, _, _, index = _IFADDR.unpack_from(body)
    raw = b""
    for kind, value in attributes(body, 8):
        if kind == IFA_LOCAL or (kind == IFA_ADDRESS and not raw):
            raw = bytes(value)
    if len(raw) == 4:
        return AddressInfo(index, IPv4Interface((raw, length)))
    return AddressInfo(index, IPv6Interface((raw, length)))


def parse_route(body: bytes) -> RouteInfo:
    """RTM_NEWROUTE or RTM_DELROUTE."""
    family, length, _, _, table, protocol, _, kind_of, _ = _RTMSG.unpack_from(body)
    destination, gateway, index = b"", None, 0
    hops: list[tuple[Address | None, int, int]] = []
    for kind, value in attributes(body, 12):
        if kind == RTA_DST:
            destination = bytes(value)
        elif kind == RTA_GATEWAY:
            gateway = ip_address(bytes(value))
        elif kind == RTA_VIA:
            gateway = ip_address(bytes(value[2:]))
        elif kind == RTA_OIF:
            index = int.from_bytes(value, "little")
        elif kind == RTA_TABLE:
            table = int.from_bytes(value, "little")
        elif kind == RTA_MULTIPATH:
            hops = list(_next_hops(value))
    if not hops and index:
        hops = [(gateway, index, 1)]
    if family == socket.AF_INET:
        prefix: Network = IPv4Network((destination.ljust(4, b"\0"), length))
    else:
        prefix = IPv6Network((destination.ljust(16, b"\0"), length))
    return RouteInfo(prefix, table, protocol, kind_of, tuple(hops))


def _next_hops(value: memoryview) -> Iterator[tuple[Address | None, int, int]]:
    offset = 0
    while offset + 8 <= len(value):
        length, _, weight, index = _NEXTHOP.unpack_from(value, offset)
        gateway = None
        for kind, data in attributes(value[: offset + length], offset + 8):
            if kind == RTA_GATEWAY:
                gateway = ip_address(bytes(data))
            elif kind == RTA_VIA:
                gateway = ip_address(bytes(data[2:]))
        yield gateway, index, weight + 1
        offset += length + 3 & ~3


def parse_neighbour(body: bytes) -> NeighbourInfo | None:
    """RTM_NEWNEIGH or RTM_DELNEIGH of an IP neighbour; None for bridge entries."""
    family, index, state, _, _ = _NDMSG.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    address: Address | None = None
    mac = ""
    for kind, value in attributes(body, 12):
        if kind == 1:
            address = ip_address(bytes(value))
        elif kind == 2:
            mac = bytes(value).hex(":")
    return NeighbourInfo(index, address, mac, state) if address is not None else None


#: An end of a veth whose carrier has just come may drop what it sends, until the kernel has activated its queue: some
#: milliseconds, or a second where links come up by the hundred (linkwatch, net/core/link_watch.c). An ARP request lost
#: then is sent again after so long, not after the usual second, and given up after 3 s, as is usual: a BGP session
#: whose first call fails waits for its connect timer.
RETRANSMIT_MS, ASK_TIMES = 100, 30


def hasten_neighbours(kernel: NetlinkSocket, indexes: Iterable[int]) -> None:
    """Ask for neighbours again sooner on these interfaces."""
    batch = Batch()
    for index in indexes:
        batch.retransmit(index, RETRANSMIT_MS, ASK_TIMES)
    kernel.run(batch, ignore=frozenset({errno.ENOENT}))  # a kernel without IPv6


class NetlinkSocket:
    """A rtnetlink socket of the namespace the calling thread is in when it is made; usable from anywhere after."""

    CHUNK = 24 * 1024
    #: More than the kernel puts into one datagram (32 KiB, netlink_recvmsg), and little enough for malloc to keep.
    RECEIVE = 1 << 16

    def __init__(self, groups: int = 0) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        self.socket.bind((0, groups))
        self.socket.settimeout(10)

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def run(self, batch: Batch, *, ignore: frozenset[int] = frozenset()) -> None:
        """Send all requests and read every acknowledgement; transient failures are tried again, three times.

        Raises LabError naming the first request that failed with an error not in ``ignore``.
        """
        pending = list(range(len(batch)))
        for attempt in range(4):
            failed = self._send(batch, pending)
            hard = [(i, code) for i, code in failed if code not in TRANSIENT and code not in ignore]
            if hard:
                i, code = hard[0]
                more = f" (and {len(hard) - 1} more)" if len(hard) > 1 else ""
                raise LabError(f"kernel refused {batch.labels[i]}: {os.strerror(code)}{more}")
            pending = [i for i, code in failed if code in TRANSIENT]
            if not pending:
                return
            if attempt < 3:
                time.sleep(0.1 * 2**attempt)
        raise LabError(f"kernel stayed busy: {batch.labels[pending[0]]}")

    def _send(self, batch: Batch, which: list[int]) -> list[tuple[int, int]]:
        failed: list[tuple[int, int]] = []
        at = 0
        while at < len(which):
            chunk: list[bytes] = []
            size = 0
            first = at
            while at < len(which) and size < self.CHUNK:
                message = batch.messages[which[at]]
                chunk.append(message)
                size += len(message)
                at += 1
            self.socket.send(b"".join(chunk))
            waiting = set(which[first:at])
            while waiting:
                for kind, sequence, body in self._messages():
                    if kind == NLMSG_ERROR and sequence in waiting:
                        waiting.discard(sequence)
                        code = -struct.unpack_from("=i", body)[0]
                        if code:
                            failed.append((sequence, code))
        return failed

    def _messages(self) -> Iterator[tuple[int, int, bytes]]:
        data = self.socket.recv(self.RECEIVE)
        offset = 0
        while offset + 16 <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
            yield kind, sequence, data[offset + 16 : offset + length]
            offset += length + 3 & ~3

    def dump(self, kind: int, family: int = 0) -> Iterator[bytes]:
        """The bodies of a table: RTM_GETLINK, GETADDR, GETROUTE or GETNEIGH."""
        body = {
            RTM_GETLINK: _IFINFO.pack(family, 0, 0, 0, 0),
            RTM_GETADDR: _IFADDR.pack(family, 0, 0, 0, 0),
            RTM_GETROUTE: _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0),
            RTM_GETNEIGH: _NDMSG.pack(family, 0, 0, 0, 0),
        }[kind]
        return self._dump(kind, body)

    def _dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        self.socket.send(_HEADER.pack(16 + len(body), kind, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + body)
        while True:
            for reply, _, content in self._messages():
                if reply == NLMSG_DONE:
                    return
                if reply == NLMSG_ERROR:
                    raise LabError(f"kernel dump failed: {os.strerror(-struct.unpack_from('=i', content)[0])}")
                yield content

    def links(self) -> dict[str, LinkInfo]:
        """Interfaces by name."""
        return {link.name: link for link in map(parse_link, self.dump(RTM_GETLINK))}

    def classifiers(self, index: int) -> list[tuple[int, int]]:
        """(priority, handle) of every classifier on what an interface receives."""
        found = []
        for body in self._dump(RTM_GETTFILTER, _TCMSG.pack(0, index, 0, TC_H_CLSACT_INGRESS, 0)):
            _, _, handle, _, info = _TCMSG.unpack_from(body)
            if handle:  # 0: the list itself
                found.append((info >> 16, handle))
        return found

    def addresses(self) -> list[AddressInfo]:
        """All addresses."""
        return [parse_address(body) for body in self.dump(RTM_GETADDR)]

    def routes(self, family: int = socket.AF_INET) -> list[RouteInfo]:
        """All routes of a family, every table."""
        return [parse_route(body) for body in self.dump(RTM_GETROUTE, family)]

    def bgp_widths(self, family: int = socket.AF_INET) -> dict[tuple[bytes, int], tuple[int, ...]]:
        """(packed prefix, length) -> interface indices of the next hops, of BGP's routes in the main table.

        A tenth of the cost of ``routes``: what a lab of a hundred switches is compared with its design by.
        """
        found: dict[tuple[bytes, int], tuple[int, ...]] = {}
        for body in self.dump(RTM_GETROUTE, family):
            if body[4] != RT_TABLE_MAIN or body[5] != RTPROT_BGP:
                continue
            prefix, hops = b"", []
            offset, end = 12, len(body)
            while offset + 4 <= end:
                length, kind = _ATTR.unpack_from(body, offset)
                if kind == RTA_DST:
                    prefix = body[offset + 4 : offset + length]
                elif kind == RTA_OIF:
                    hops = [int.from_bytes(body[offset + 4 : offset + 8], "little")]
                elif kind == RTA_MULTIPATH:
                    at, stop = offset + 4, offset + length
                    while at + 8 <= stop:
                        size, _, _, index = _NEXTHOP.unpack_from(body, at)
                        hops.append(index)
                        at += size + 3 & ~3
                offset += length + 3 & ~3
            found[prefix.ljust(4 if family == socket.AF_INET else 16, b"\0"), body[1]] = tuple(hops)
        return found

    def neighbours(self) -> list[NeighbourInfo]:
        """ARP and ND entries."""
        return [n for n in map(parse_neighbour, self.dump(RTM_GETNEIGH)) if n]

    def events(self) -> list[tuple[int, bytes]]:
        """What has arrived on the groups joined, without waiting. Raises OSError(ENOBUFS) if some were lost."""
        self.socket.setblocking(False)
        found: list[tuple[int, bytes]] = []
        try:
            while True:
                found += [(kind, body) for kind, _, body in self._messages()]
        except BlockingIOError:
            return found
