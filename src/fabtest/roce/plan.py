"""What an engine process is told: queue pairs with their addresses, and the messages to send over them.

Plain values, made before anything runs; the same plan gives the same packets. Ranks are GPUs, numbered over the
workload from 0. Times are nanoseconds from the start, sizes bytes, rates bit/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fabtest.roce.frames import Address
from fabtest.roce.transport import Verb


@dataclass(frozen=True, slots=True)
class PathSpec:
    """A way from a local NIC port to a remote one: in a dual-plane fabric a queue pair has one per plane."""

    interface: str
    src: Address
    dst: Address
    src_mac: str
    dst_mac: str


@dataclass(frozen=True, slots=True)
class QpSpec:
    """One end of a queue pair. ``pair`` is its number in the workload, the same at both ends."""

    pair: int
    server: str
    peer: str
    qpn: int
    peer_qpn: int
    psn: int
    peer_psn: int
    src_port: int
    paths: tuple[PathSpec, ...]
    requester: bool
    rail: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A message of a server. ``after``: messages that must have arrived or completed there before it is posted.

    ``pair`` -1: both ranks are in that server, and it goes by NVLink, not the network. ``group`` is what it belongs to,
    a step for instance; the slowest message of a group decides when that is over.
    """

    number: int
    server: str
    length: int
    verb: Verb
    pair: int
    after: tuple[int, ...] = ()
    at_ns: int = 0
    group: int = 0
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Messages one after the other on a queue pair until the time is up, ``outstanding`` at a time.

    ``rate`` limits it (bit/s of payload; 0: none). ``reliable`` False: unreliable connected service: numbered packets
    at the rate, whatever the network does.
    """

    pair: int
    length: int
    verb: Verb
    at_ns: int
    until_ns: int
    outstanding: int = 2
    rate: float = 0.0
    reliable: bool = True
    total: int = 0


@dataclass(frozen=True, slots=True)
class TransportSpec:
    """How queue pairs behave. Times are of the lab, already dilated."""

    mtu: int = 4096
    window: int = 64
    ack_every: int = 16
    timeout_ns: int = 200_000_000
    retry_limit: int = 7
    dscp: int = 26
    ecn: int = 2
    cnp_dscp: int = 48
    cnp_interval_ns: int = 50_000
    congestion_control: str = ""
    line_rate: float = 0.0
    dilation: float = 1.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The share of one engine process: some servers, all their queue pairs and what they send."""

    lab: str
    family: int
    transport: TransportSpec
    netns: dict[str, str]
    interfaces: dict[str, tuple[str, ...]]
    qps: tuple[QpSpec, ...]
    messages: tuple[Planned, ...]
    streams: tuple[StreamSpec, ...]
    #: Messages that arrive here from other servers.
    expected: int
    limit_ns: int
    bin_ns: int = 100_000_000
    #: Captures at the sender see what it sends; that costs a few per cent.
    visible: bool = False
    rails: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Queue pairs of unreliable service, when their streams begin and when they end (ns from the start); also of those
    #: that are sent from elsewhere.
    unreliable: tuple[tuple[int, int, int], ...] = ()
