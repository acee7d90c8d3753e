"""A namespace that receives RoCEv2: its ring, and a classifier that keeps the kernel from answering."""

from __future__ import annotations

import errno
import os

from fabtest.roce.ring import Received, Ring
from fabtest.runtime.bpf import load_roce_drop
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import Batch, NetlinkSocket

#: Priority of our classifier on an interface's ingress; it tells ours from others.
PRIORITY = 4791
SLOTS = 8192


class Receiver:
    """RoCEv2 frames that arrive in a server's namespace. Its kernel sees none of them while this is open: without a
    socket on port 4791 it would answer with ICMP port unreachable."""

    def __init__(
        self, netns: str | os.PathLike[str], interfaces: list[str], *, slots: int = SLOTS, whole: bool = False
    ) -> None:
        self._netns = netns
        self._interfaces = interfaces
        self.ring = Ring(netns, slots=slots, whole=whole)
        try:
            attach_drop(netns, interfaces)
        except Exception:
            self.close()
            raise

    def take(self, limit: int = 4096) -> Received | None:
        """See ``Ring.take``."""
        return self.ring.take(limit)

    def close(self) -> None:
        """The kernel sees RoCEv2 again."""
        self.ring.close()
        detach_drop(self._netns, self._interfaces)

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def attach_drop(netns: str | os.PathLike[str], interfaces: list[str]) -> None:
    """The kernel of this namespace sees no RoCEv2 on these interfaces; captures still do. Raises MachineError."""
    program = load_roce_drop()
    try:
        with inside(netns), NetlinkSocket() as kernel:
            links = kernel.links()
            qdiscs, filters = Batch(), Batch()
            for name in interfaces:
                qdiscs.clsact(links[name].index)
                filters.classifier(links[name].index, PRIORITY, "fabtest-roce-drop", program)
            kernel.run(qdiscs, ignore=frozenset({errno.EEXIST}))
            kernel.run(filters)
    finally:
        os.close(program)


def detach_drop(netns: str | os.PathLike[str], interfaces: list[str]) -> None:
    """Undo ``attach_drop``."""
    with inside(netns), NetlinkSocket() as kernel:
        links = kernel.links()
        batch = Batch()
        for name in interfaces:
            if name in links:
                batch.remove_classifier(links[name].index, PRIORITY)
        kernel.run(batch, ignore=frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV}))
