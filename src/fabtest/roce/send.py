"""Sending RoCEv2 frames out of a server's NIC port."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from fabtest.errors import TrafficError, UsageError
from fabtest.model import NicPort
from fabtest.roce.frames import Flow, Template
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
    """A raw socket on one NIC port; frames go out as they are."""

    def __init__(self, lab: Lab, nic: NicAddress) -> None:
        node = lab.node(nic.server)
        self.nic = nic
        self.gateway_mac = resolve(node, nic.port.name, nic.gateway)
        with inside(node.netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self._socket.bind((nic.port.name, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, 32, struct.pack("i", 4 << 20))  # SO_SNDBUFFORCE

    def template(self, flow: Flow, payload: int = 64, opcode: int = 0x04) -> Template:
        """Frames of a flow with this port's MAC addresses."""
        return Template(flow, self.nic.port.mac, self.gateway_mac, payload, opcode)

    def send(self, frame: bytes) -> None:
        """One frame. Raises TrafficError if the port is gone; a port that is down drops it, as hardware does."""
        try:
            self._socket.send(frame)
        except OSError as error:
            if error.errno not in (100, 105, 19, 6):  # ENETDOWN, ENOBUFS, ENODEV, ENXIO
                raise TrafficError(f"{self.nic}: cannot send: {error.strerror}") from None

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
