"""UDP source ports of queue pairs: where a RoCEv2 fabric gets its ECMP entropy from.

``rdma-core``: what Linux drivers do, from flow label or QPNs (``ibv_flow_label_to_udp_sport`` in rdma-core's verbs.h
and the kernel's ib_verbs.h). ``per-qp``: as mlx5dv_modify_qp_udp_sport sets them, all different while there are enough.
"""

from __future__ import annotations

import random
from enum import StrEnum

FIRST_PORT, PORTS = 0xC000, 0x4000


class PortPolicy(StrEnum):
    """How a queue pair gets its UDP source port."""

    RDMA_CORE = "rdma-core"
    PER_QP = "per-qp"
    FIXED = "fixed"
    RANDOM = "random"


def rdma_core_port(flow_label: int, local_qpn: int, remote_qpn: int) -> int:
    """The port of a flow label (20 bits), or, if it is 0, of the two QPNs; symmetric in them."""
    label = flow_label & 0xFFFFF
    if not label:
        v = local_qpn * remote_qpn
        v ^= v >> 20
        v ^= v >> 40
        label = v & 0xFFFFF
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | FIRST_PORT


def source_port(policy: PortPolicy, index: int, local_qpn: int, remote_qpn: int, seed: int = 0) -> int:
    """The port of the ``index``-th queue pair of a workload."""
    if policy is PortPolicy.RDMA_CORE:
        return rdma_core_port(0, local_qpn, remote_qpn)
    if policy is PortPolicy.PER_QP:
        return FIRST_PORT + index % PORTS
    if policy is PortPolicy.FIXED:
        return FIRST_PORT
    return FIRST_PORT + random.Random(f"{seed}/{index}").randrange(PORTS)
