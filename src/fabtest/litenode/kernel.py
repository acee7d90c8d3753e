"""Bringing the kernel of one namespace in line with an intent, and nothing more than differs."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from fabtest.litenode.intent import DEFAULT_MTU, SwitchIntent
from fabtest.runtime.bpf_programs import load_qp_hash
from fabtest.runtime.namespaces import write_sysctls
from fabtest.runtime.netlink import Batch, LinkInfo, NetlinkSocket
from fabtest.sonic.sysctl import SEED, hash_sysctls


def managed(name: str) -> bool:
    """Interfaces that CONFIG_DB owns."""
    return name.startswith(("Ethernet", "Loopback", "Vlan"))


def reconcile_links(intent: SwitchIntent, links: dict[str, LinkInfo], cut: Collection[str]) -> Batch:
    """Ports up or down and their MTU, bridges of VLANs and loopbacks. Ports in ``cut`` are held down (a fault)."""
    batch = Batch()
    bridges = {*intent.loopbacks, *intent.vlans}
    for name in bridges - links.keys():
        batch.bridge(name, intent.mac, DEFAULT_MTU)
    for name, link in links.items():
        if name.startswith(("Loopback", "Vlan")) and name not in bridges:
            batch.delete_link(link.index, name)
    master_of = {member: vlan for vlan, members in intent.vlans.items() for member in members}
    for name, link in links.items():
        if not name.startswith("Ethernet"):
            continue
        port = intent.ports.get(name)
        up = port is not None and port.admin_up and name not in cut
        mtu = port.mtu if port else link.mtu
        vlan = master_of.get(name)
        wanted = links[vlan].index if vlan in links and vlan else 0
        changes: dict[str, int | bool] = {}
        if link.mtu != mtu:
            changes["mtu"] = mtu
        if link.master != wanted:
            changes["master"] = wanted
        if link.up != up:
            changes["up"] = up
        if changes:
            batch.set_link(name, **changes)  # type: ignore[arg-type]
    return batch


def reconcile_addresses(intent: SwitchIntent, kernel: NetlinkSocket, links: dict[str, LinkInfo]) -> Batch:
    """Addresses of managed interfaces: those asked for and no others (IPv6 link-local ones are the kernel's)."""
    batch = Batch()
    have: dict[int, set[object]] = {}
    for info in kernel.addresses():
        if not info.interface.is_link_local:
            have.setdefault(info.index, set()).add(info.interface)
    for name, link in links.items():
        if not managed(name):
            continue
        wanted = intent.addresses.get(name, frozenset())
        present = have.get(link.index, set())
        for interface in sorted(present - wanted, key=str):
            batch.address(link.index, interface, add=False)  # type: ignore[arg-type]
        for interface in sorted(wanted - present, key=str):
            batch.address(link.index, interface)
    return batch


def apply_intent(intent: SwitchIntent, kernel: NetlinkSocket, cut: Collection[str]) -> bool:
    """Bring links and addresses in line; True if anything had to change.

    Twice round, since a new bridge has no index until it exists and a port can join it only then.
    """
    changed = False
    for _ in range(2):
        batch = reconcile_links(intent, kernel.links(), cut)
        if not batch:
            break
        kernel.run(batch)
        changed = True
    batch = reconcile_addresses(intent, kernel, kernel.links())
    if batch:
        kernel.run(batch)
        changed = True
    return changed


def apply_hash(intent: SwitchIntent, seed: int | None, *, qp_hash: bool = False) -> list[str]:
    """Set the ECMP hash of the namespace the thread is in; returns warnings (a kernel without seeds).

    ``qp_hash``: the policy that takes a packet's hash as it is, where ``hash_by_qp`` has put one.
    """
    missing = write_sysctls(hash_sysctls(intent.hash, seed, qp_hash=qp_hash))
    if SEED in missing:
        return [
            "this kernel has no per-namespace hash seed (Linux 6.11 added it): all switches hash alike, so tiers "
            "polarise"
        ]
    return [f"this kernel does not know {name}" for name in missing if "ipv4" in name]


#: Priority of the classifier on a switch port's ingress.
QP_HASH_PRIORITY = 4791


def hash_by_qp(kernel: NetlinkSocket, seed: int) -> None:
    """E-ECMP: every port's RoCEv2 packets get a hash of addresses, UDP source port and destination QP, salted with the
    switch's seed, and ECMP uses it. Raises MachineError where the kernel cannot."""
    # A salt of 0 would be as good as any other, but a seed of 0 must differ from one of 1 in more than a bit.
    program = load_qp_hash((seed * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF)
    try:
        qdiscs, filters = Batch(), Batch()
        for name, link in kernel.links().items():
            if name.startswith("Ethernet"):
                qdiscs.clsact(link.index)
                filters.classifier(link.index, QP_HASH_PRIORITY, "fabtest-qp-hash", program)
        kernel.run(qdiscs, ignore=frozenset({errno.EEXIST}))
        kernel.run(filters)
    finally:
        os.close(program)
