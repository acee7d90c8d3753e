"""SONiC's SWITCH_HASH in the kernel's terms.

``net.ipv4.fib_multipath_hash_policy`` 3 hashes the fields of ``fib_multipath_hash_fields``
(Documentation/networking/ip-sysctl.rst): 0x1 source address, 0x2 destination address, 0x4 protocol, 0x8 flow label,
0x10 source port, 0x20 destination port, and the same for the inner packet from 0x40 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fabtest.model import Tier

POLICY_CUSTOM = 3
FIELD_BITS = {
    "SRC_IP": 0x0001, "DST_IP": 0x0002, "IP_PROTOCOL": 0x0004, "IPV6_FLOW_LABEL": 0x0008, "L4_SRC_PORT": 0x0010,
    "L4_DST_PORT": 0x0020, "INNER_SRC_IP": 0x0040, "INNER_DST_IP": 0x0080, "INNER_IP_PROTOCOL": 0x0100,
    "INNER_L4_SRC_PORT": 0x0400, "INNER_L4_DST_PORT": 0x0800,
}  # fmt: skip


#: Seeds of SONiC's switch.json.j2 by tier (there: ToR, leaf, spine).
TIER_SEED = {Tier.LEAF: 0, Tier.SPINE: 10, Tier.SUPERSPINE: 25}
#: What an ASIC hashes where SWITCH_HASH is not set, as far as a fabric of routed links shows it: SAI's default native
#: hash (saihash.h) has the five-tuple beside layer 2 fields.
SAI_DEFAULT_FIELDS = ("SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT")


@dataclass(frozen=True, slots=True)
class KernelHash:
    """Values of the two sysctls, and the SONiC fields the kernel cannot hash."""

    policy: int
    fields: int
    unsupported: tuple[str, ...]


def kernel_hash(fields: Iterable[str]) -> KernelHash:
    """Translate SWITCH_HASH.ecmp_hash. With no usable field SONiC's default stands: addresses and protocol."""
    names = list(fields)
    bits = 0
    for name in names:
        bits |= FIELD_BITS.get(name, 0)
    unsupported = tuple(n for n in names if n not in FIELD_BITS)
    return KernelHash(POLICY_CUSTOM, bits or 0x7, unsupported)
