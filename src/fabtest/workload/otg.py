"""A workload as Open Traffic Generator JSON, to drive a hardware tester with what ran in the lab.

The model is snappi's (open-traffic-generator/models, RoCEv2): a device per NIC port, a peer per destination, the queue
pairs with their numbers, PSNs and UDP source ports, and a flow per queue pair. Dependencies between messages have no
place there: a collective becomes its queue pairs, with the message size of its steps.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fabtest.errors import UsageError
from fabtest.model import Fabric
from fabtest.roce.dcqcn import PROFILES
from fabtest.workload.compile import Compiled

_ECN = {0: "non_ect", 1: "ect_1", 2: "ect_0", 3: "ce"}


def otg_config(compiled: Compiled, fabric: Fabric) -> dict[str, Any]:
    """The configuration, ready for JSON. Raises UsageError if no queue pair is left that OTG can describe."""
    t = compiled.transport
    sizes: dict[int, int] = {}
    verbs: dict[int, str] = {}
    for message in compiled.messages:
        if message.pair >= 0:
            sizes[message.pair] = max(sizes.get(message.pair, 0), message.length)
            verbs[message.pair] = message.verb.value
    for stream in compiled.streams:
        if stream.reliable:
            sizes[stream.pair], verbs[stream.pair] = stream.length, stream.verb.value
    if not sizes:
        raise UsageError("nothing of this workload can be written as OTG: it has no reliable queue pairs")
    # (server, interface) -> destination -> its queue pairs
    peers: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    flows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    known = {(s.name, p.name): p for s in fabric.servers for p in s.ports}
    for pair in compiled.pairs:
        if pair.number not in sizes:
            continue
        for end in (pair.requester, pair.responder):
            path = end.paths[end.pair % len(end.paths)]
            peers[end.server, path.interface][str(path.dst)].append({
                "qp_name": _qp(end.server, path.interface, end.qpn),
                "connection_type": {
                    "choice": "reliable_connection",
                    "reliable_connection": {
                        "source_qp_number": end.qpn, "dscp": t.dscp, "ecn": _ECN[t.ecn],
                        "udp_source_port": end.src_port, "initial_psn": end.psn,
                    },
                },
            })  # fmt: skip
        near, far = pair.requester, pair.responder
        near_path, far_path = near.paths[near.pair % len(near.paths)], far.paths[far.pair % len(far.paths)]
        verb = verbs[pair.number]
        flows[_port(near.server, near_path.interface)].append({
            "name": f"qp-{pair.number}",
            "tx_endpoint": _qp(near.server, near_path.interface, near.qpn),
            "rx_endpoint": _qp(far.server, far_path.interface, far.qpn),
            "rocev2_verb": {"choice": verb},
            **_message_size(sizes[pair.number]),
        })  # fmt: skip
    family = "ipv4" if compiled.family == 4 else "ipv6"
    devices = []
    for (server, interface), by_peer in peers.items():
        port = known[server, interface]
        which = next(i for i, a in enumerate(port.addresses) if a.version == compiled.family)
        address, gateway = port.addresses[which], port.gateways[which]
        name = f"{server}-{interface}"
        devices.append({
            "name": name,
            "ethernets": [{
                "name": f"{name}-eth", "mac": port.mac, "mtu": port.mtu,
                "connection": {"choice": "port_name", "port_name": _port(server, interface)},
                f"{family}_addresses": [{
                    "name": f"{name}-{family}", "address": str(address.ip), "gateway": str(gateway),
                    "prefix": address.network.prefixlen,
                }],
            }],
            "rocev2": {
                f"{family}_interfaces": [{
                    f"{family}_name": f"{name}-{family}", "ib_mtu": t.mtu,
                    "peers": [
                        {"name": f"{name}-to-{_word(peer)}", "destination_ip_address": peer, "qps": qps}
                        for peer, qps in by_peer.items()
                    ],
                }],
            },
        })  # fmt: skip
    ports = sorted({_port(server, interface) for server, interface in peers})
    settings = _per_port(compiled)
    return {
        "ports": [{"name": name, "location": name} for name in ports],
        "devices": devices,
        "options": {
            "per_port_options": [
                {"port_name": name, "protocols": [{"choice": "rocev2", "rocev2": settings}]} for name in ports
            ],
        },
        "stateful_flows": {
            "choice": "rocev2",
            "rocev2": [{
                "tx_ports": [
                    {
                        "port_name": name,
                        "transmit_type": {
                            "choice": "target_line_rate", "target_line_rate": {"value": 98, "flows": some},
                        },
                    }
                    for name, some in sorted(flows.items())
                ],
            }],
        },
    }  # fmt: skip


def _per_port(compiled: Compiled) -> dict[str, Any]:
    t = compiled.transport
    settings: dict[str, Any] = {
        "cnp": {"choice": "ip_dscp", "ip_dscp": {"value": t.cnp_dscp}, "ecn_value": "non_ect"},
        "connection_type": {
            "choice": "reliable_connection",
            "reliable_connection": {
                "enable_retransmission_timeout": True, "retransmission_retry_count": t.retry_limit,
                "ack": {"choice": "ip_dscp", "ip_dscp": {"value": t.dscp}},
                "nak": {"choice": "ip_dscp", "ip_dscp": {"value": t.dscp}},
            },
        },
    }  # fmt: skip
    profile = PROFILES.get(t.congestion_control)
    settings["dcqcn_settings"] = {"enable_dcqcn": profile is not None}
    if profile is not None:
        settings["dcqcn_settings"] |= {
            "alpha_g": round(1024 * (1 - profile.g)), "alpha_update_period": max(1, profile.alpha_period_ns // 1000),
            "rate_reduction_time_period": max(1, profile.decrease_interval_ns // 1000),
            "rate_increment_time": max(1, profile.increase_timer_ns // 1000),
            "rate_increment_threshold": profile.fast_recovery, "clamp_target_rate": profile.clamp_target,
        }  # fmt: skip
    return settings


def _message_size(size: int) -> dict[str, Any]:
    """OTG counts up to 65,535 of a unit; what does not fit is rounded up to the next."""
    for unit, factor in (("bytes", 1), ("kb", 1000), ("mb", 10**6), ("gb", 10**9)):
        if size <= 65535 * factor:
            return {"message_size": -(-size // factor), "message_size_unit": unit}
    raise UsageError(f"messages of {size} bytes are more than OTG can say")


def _port(server: str, interface: str) -> str:
    return f"{server}-{interface}"


def _qp(server: str, interface: str, qpn: int) -> str:
    return f"{server}-{interface}-qp{qpn}"


def _word(address: str) -> str:
    return address.replace(":", "_")
