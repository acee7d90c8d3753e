"""LLDP (IEEE 802.1AB-2016) on the wires of a lab: what lldpd does on a SONiC switch and on its servers.

Real frames: a neighbour in LLDP_ENTRY_TABLE is proof of a cable. Chassis ID is the MAC, port ID the interface name
(servers) or SONiC's alias (switches, as lldpmgrd sets it), port description the interface name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ETHERTYPE = 0x88CC
MULTICAST = bytes.fromhex("0180c200000e")
HELLO_S = 30
TTL_S = 120
_CHASSIS_ID, _PORT_ID, _TTL, _PORT_DESC, _SYS_NAME, _SYS_DESC, _CAPABILITIES = 1, 2, 3, 4, 5, 6, 7
_SUBTYPE_MAC, _SUBTYPE_INTERFACE_NAME, _SUBTYPE_LOCAL = 4, 5, 7
BRIDGE_ROUTER, STATION = 0x14, 0x80


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What a frame says of its sender."""

    chassis_id: str
    port_id: str
    port_id_subtype: int
    port_description: str
    system_name: str
    system_description: str
    capabilities: int
    ttl: int


def _tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def frame(
    mac: str, port_id: str, port_description: str, system_name: str, system_description: str, capabilities: int
) -> bytes:
    """An LLDPDU in its Ethernet frame."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return (
        MULTICAST
        + raw
        + struct.pack("!H", ETHERTYPE)
        + _tlv(_CHASSIS_ID, bytes([_SUBTYPE_MAC]) + raw)
        + _tlv(_PORT_ID, bytes([_SUBTYPE_LOCAL]) + port_id.encode())
        + _tlv(_TTL, struct.pack("!H", TTL_S))
        + _tlv(_PORT_DESC, port_description.encode())
        + _tlv(_SYS_NAME, system_name.encode())
        + _tlv(_SYS_DESC, system_description.encode())
        + _tlv(_CAPABILITIES, struct.pack("!HH", capabilities, capabilities))
        + b"\0\0"
    )


def parse(data: bytes) -> Neighbour | None:
    """The neighbour of a frame, or None if it is not a whole LLDPDU."""
    if len(data) < 14 or struct.unpack_from("!H", data, 12)[0] != ETHERTYPE:
        return None
    found: dict[int, bytes] = {}
    offset = 14
    while offset + 2 <= len(data):
        head = struct.unpack_from("!H", data, offset)[0]
        kind, length = head >> 9, head & 0x1FF
        if kind == 0:
            break
        found.setdefault(kind, data[offset + 2 : offset + 2 + length])
        offset += 2 + length
    chassis, port = found.get(_CHASSIS_ID, b""), found.get(_PORT_ID, b"")
    if len(chassis) < 2 or len(port) < 2 or len(found.get(_TTL, b"")) != 2:
        return None
    text = {k: v.decode(errors="replace") for k, v in found.items()}
    return Neighbour(
        chassis_id=chassis[1:].hex(":") if chassis[0] == _SUBTYPE_MAC else chassis[1:].decode(errors="replace"),
        port_id=port[1:].decode(errors="replace"),
        port_id_subtype=port[0],
        port_description=text.get(_PORT_DESC, ""),
        system_name=text.get(_SYS_NAME, ""),
        system_description=text.get(_SYS_DESC, ""),
        capabilities=struct.unpack("!HH", found[_CAPABILITIES])[1] if len(found.get(_CAPABILITIES, b"")) == 4 else 0,
        ttl=struct.unpack("!H", found[_TTL])[0],
    )


def entry(neighbour: Neighbour, index: int, time_mark: int) -> dict[str, str]:
    """A row of APPL_DB LLDP_ENTRY_TABLE, with the fields of sonic-dbsyncd's lldp_syncd."""
    capabilities = neighbour.capabilities << 8 & 0xFF00
    return {
        "lldp_rem_port_id_subtype": str(neighbour.port_id_subtype),
        "lldp_rem_port_id": neighbour.port_id,
        "lldp_rem_port_desc": neighbour.port_description,
        "lldp_rem_sys_name": neighbour.system_name,
        "lldp_rem_sys_desc": neighbour.system_description,
        "lldp_rem_chassis_id_subtype": str(_SUBTYPE_MAC),
        "lldp_rem_chassis_id": neighbour.chassis_id,
        "lldp_rem_sys_cap_supported": f"{capabilities >> 8:02X} 00",
        "lldp_rem_sys_cap_enabled": f"{capabilities >> 8:02X} 00",
        "lldp_rem_man_addr": "",
        "lldp_rem_index": str(index),
        "lldp_rem_time_mark": str(time_mark),
    }
