"""Sending RoCEv2 frames out of a server's NIC port."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from fabtest.errors import TrafficError, UsageError
from fabtest.model import NicPort
from fabtest.roce.compose import Composer, Port
from fabtest.roce.frames import Flow, header
from fabtest.roce.opcodes import EXTENSION_BYTES, Op
from fabtest.runtime.base import Lab, LiveNode
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import NUD_VALID, NetlinkSocket

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class NicAddress:
    """A NIC port of a server with one of its addresses and the leaf address it routes through."""

    server: str
    port: NicPort
    address: Address
    gateway: Address

    def __str__(self) -> str:
        return f"{self.server}:{self.port.name} ({self.address})"


def nic_addresses(lab: Lab, server: str, family: int) -> list[NicAddress]:
    """The addresses of a server's NIC ports, in the order of the ports."""
    found = []
    for port in lab.fabric.server[server].ports:
        for address, gateway in zip(port.addresses, port.gateways, strict=True):
            if address.version == family:
                found.append(NicAddress(server, port, address.ip, gateway))
    return found


def nic_named(lab: Lab, word: str, family: int) -> NicAddress:
    """``gpu1`` (its first NIC port) or ``gpu1:eth2``. Raises UsageError."""
    server, _, port = word.partition(":")
    node = lab.node(server)
    if node.role != "server":
        raise UsageError(f"{server} is a switch: traffic goes between servers")
    found = nic_addresses(lab, server, family)
    chosen = [n for n in found if not port or n.port.name == port]
    if not chosen:
        raise UsageError(
            f"{server} has no NIC port {port or 'with an address'}",
            hint=f"ports: {', '.join(n.port.name for n in found)}",
        )
    return chosen[0]


def resolve(node: LiveNode, interface: str, gateway: Address, timeout: float = 3.0) -> str:
    """The MAC address of a neighbour, asked for if the kernel does not know it. Raises TrafficError."""
    deadline = time.monotonic() + timeout
    with inside(node.netns), NetlinkSocket() as kernel:
        index = kernel.links()[interface].index
        while True:
            for n in kernel.neighbours():
                if n.index == index and n.address == gateway and n.state & NUD_VALID and n.mac:
                    return n.mac
            if time.monotonic() > deadline:
                raise TrafficError(
                    f"{node.name}: no neighbour {gateway} on {interface}", hint="is the link up? see `lab-status`"
                )
            kind = socket.AF_INET if gateway.version == 4 else socket.AF_INET6
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
                try:
                    probe.sendto(b"", (str(gateway), 9))
                except OSError:
                    pass
            time.sleep(0.02)


class Sender:
    """Frames of flows out of NIC ports of any servers, composed and sent together. All are of one IP version."""

    def __init__(self, lab: Lab, family: int) -> None:
        self._lab = lab
        self._composer = Composer(family)
        self._ports: dict[str, tuple[Port, int]] = {}
        self._links: dict[tuple[str, str], tuple[bytes, bytes, int]] = {}

    def flow(self, nic: NicAddress, flow: Flow, *, payload: int = 64, opcode: int = Op.SEND_ONLY) -> int:
        """A flow that leaves by a port to its gateway; its number. Raises TrafficError."""
        node = self._lab.node(nic.server)
        if nic.server not in self._ports:
            port = Port(node.netns)
            self._ports[nic.server] = port, self._composer.add_port(port)
        key = (nic.server, nic.port.name)
        if key not in self._links:
            interface = node.interface(nic.port.name)
            far = resolve(node, interface, nic.gateway)
            with inside(node.netns):
                index = socket.if_nametoindex(interface)
            own, gateway = (bytes.fromhex(mac.replace(":", "")) for mac in (nic.port.mac, far))
            self._links[key] = own, gateway, index
        own, gateway, index = self._links[key]
        extended = bytes(EXTENSION_BYTES[opcode])
        head = header(flow, own, gateway, opcode, payload, extended=extended)
        return self._composer.template(head, payload, self._ports[nic.server][1], index)

    def send(self, flows: Sequence[int], psns: Sequence[int]) -> None:
        """A frame of each flow; one that a port which is down drops is lost, as with hardware. Raises TrafficError."""
        self._composer.send(flows, psns, [0] * len(flows))

    def close(self) -> None:
        """Close its sockets."""
        for port, _ in self._ports.values():
            port.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
