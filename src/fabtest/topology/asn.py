"""AS numbers after RFC 7938: every leaf its own; the spines of a pod and plane share one, and so do the
super-spines of a plane, so that no path goes down and up again. A plane's numbers start 20,000 after the last's."""

from __future__ import annotations

from fabtest.model import Tier
from fabtest.topology.schema import BgpSpec
from fabtest.topology.wiring import SwitchDecl

PLANE_STEP = 20_000


def asn_of(switch: SwitchDecl, spec: BgpSpec) -> int:
    """The ASN of a switch, its own if the file gives one."""
    if switch.asn is not None:
        return switch.asn
    first = {Tier.LEAF: spec.leaf_asn, Tier.SPINE: spec.spine_asn, Tier.SUPERSPINE: spec.superspine_asn}[switch.tier]
    step = {Tier.LEAF: switch.ordinal, Tier.SPINE: switch.group, Tier.SUPERSPINE: 0}[switch.tier]
    return first + (switch.plane - 1) * (PLANE_STEP if switch.tier is Tier.LEAF else 1000) + step
