"""A server that receives RoCEv2: a ring its ports fill, and classifiers that keep its kernel from answering."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path

from fabtest.roce.ring import HEADERS, Received, Ring
from fabtest.runtime.base import Lab
from fabtest.runtime.bpf_programs import load_roce_drop, load_roce_tap
from fabtest.runtime.namespaces import inside
from fabtest.runtime.netlink import Batch, NetlinkSocket

#: Priorities of our classifiers on an interface's ingress: every receiver's tap sees a frame, then it is dropped.
TAP, DROP = 4791, 4792
SLOTS = 8192
#: A classifier's handle tells whose it is: the number of a receiver in its process, and the process (2**22 at most).
_PID_BITS = 22
_numbers = itertools.count()


class Receiver:
    """RoCEv2 frames that arrive at interfaces of a server. Its kernel sees none of them while this is open: without a
    socket on port 4791 it would answer with ICMP port unreachable. Several may be open at once, in any process."""

    def __init__(
        self,
        netns: str | os.PathLike[str],
        interfaces: list[str],
        *,
        slots: int = SLOTS,
        keep: int = HEADERS,
        sample: int = 64,
    ) -> None:
        self._netns = netns
        self._interfaces = interfaces
        self._handle = next(_numbers) % 1023 + 1 << _PID_BITS | os.getpid()
        self.ring = Ring(slots=slots, keep=keep, sample=sample)
        try:
            self._attach()
        except Exception:
            self.close()
            raise

    def _attach(self) -> None:
        tap = self.ring.tap
        with contextlib.ExitStack() as programs:
            drop = _until_attached(programs, load_roce_drop())
            leave, final = (_until_attached(programs, load_roce_tap(tap, final=last)) for last in (False, True))
            with inside(self._netns), NetlinkSocket() as kernel:
                links = kernel.links()
                indexes = [links[name].index for name in self._interfaces]
                _remove_orphans(kernel, indexes)
                qdiscs, filters, alone = Batch(), Batch(), Batch()
                for index in indexes:
                    qdiscs.clsact(index)
                    filters.classifier(index, DROP, "fabtest-roce-drop", drop, self._handle)
                    filters.classifier(index, TAP, "fabtest-roce-tap", leave, self._handle)
                kernel.run(qdiscs, ignore=frozenset({errno.EEXIST}))
                kernel.run(filters)
                # The kernel asks the newest classifier first. Who is alone now is asked last whoever comes later, and
                # may drop frames by itself.
                for index in indexes:
                    if [p for p, _ in kernel.classifiers(index)].count(TAP) == 1:
                        alone.classifier(index, TAP, "fabtest-roce-tap", final, self._handle)
                kernel.run(alone)

    def take(self, limit: int = 4096) -> Received | None:
        """See ``Ring.take``."""
        return self.ring.take(limit)

    def close(self) -> None:
        """The kernel sees RoCEv2 again, unless another receiver is open."""
        try:
            with inside(self._netns), NetlinkSocket() as kernel:
                links = kernel.links()
                batch = Batch()
                for name in self._interfaces:
                    if name in links:
                        for priority in (TAP, DROP):
                            batch.remove_classifier(links[name].index, priority, self._handle)
                kernel.run(batch, ignore=_GONE)
        finally:
            self.ring.close()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _until_attached(stack: contextlib.ExitStack, program: int) -> int:
    stack.callback(os.close, program)
    return program


_GONE = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV})


def _remove_orphans(kernel: NetlinkSocket, indexes: list[int]) -> None:
    """Take off what receivers left whose process has ended."""
    batch = Batch()
    for index in indexes:
        for priority, handle in kernel.classifiers(index):
            pid = handle & (1 << _PID_BITS) - 1
            if priority in (TAP, DROP) and not Path(f"/proc/{pid}").exists():
                batch.remove_classifier(index, priority, handle)
    kernel.run(batch, ignore=_GONE)


def remove_orphans(netns: str | os.PathLike[str], interfaces: list[str]) -> None:
    """A server's kernel sees RoCEv2 again although a receiver's process was killed."""
    with inside(netns), NetlinkSocket() as kernel:
        links = kernel.links()
        _remove_orphans(kernel, [links[name].index for name in interfaces if name in links])


def receiver_at(lab: Lab, server: str, *, slots: int = 4096, keep: int = HEADERS, sample: int = 64) -> Receiver:
    """A receiver at all ports of a server of a lab."""
    node = lab.node(server)
    interfaces = [node.interface(port.name) for port in lab.fabric.server[server].ports]
    return Receiver(node.netns, interfaces, slots=slots, keep=keep, sample=sample)
