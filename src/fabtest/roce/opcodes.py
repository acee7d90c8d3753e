"""BTH opcodes and the extended headers that follow each (InfiniBand Architecture Specification, volume 1, 9.2 and 5.2).

An opcode is ``transport << 5 | operation``. Sizes are in bytes.
"""

from __future__ import annotations

from enum import IntEnum


class Transport(IntEnum):
    """The service, in the opcode's top three bits."""

    RC = 0x00
    UC = 0x20
    RD = 0x40
    UD = 0x60
    XRC = 0xA0


class Op(IntEnum):
    """The operation, in the opcode's low five bits."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_WITH_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_WITH_IMMEDIATE = 0x05
    RDMA_WRITE_FIRST = 0x06
    RDMA_WRITE_MIDDLE = 0x07
    RDMA_WRITE_LAST = 0x08
    RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RDMA_WRITE_ONLY = 0x0A
    RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RDMA_READ_REQUEST = 0x0C
    RDMA_READ_RESPONSE_FIRST = 0x0D
    RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RDMA_READ_RESPONSE_LAST = 0x0F
    RDMA_READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    RESYNC = 0x15
    SEND_LAST_WITH_INVALIDATE = 0x16
    SEND_ONLY_WITH_INVALIDATE = 0x17


#: Congestion notification packet (annex A17.9.3).
CNP = 0x81

#: Headers after the BTH, in their order on the wire, by operation; a datagram has a DETH before all of them.
EXTENSIONS: dict[int, tuple[str, ...]] = {
    Op.SEND_LAST_WITH_IMMEDIATE: ("ImmDt",),
    Op.SEND_ONLY_WITH_IMMEDIATE: ("ImmDt",),
    Op.RDMA_WRITE_FIRST: ("RETH",),
    Op.RDMA_WRITE_LAST_WITH_IMMEDIATE: ("ImmDt",),
    Op.RDMA_WRITE_ONLY: ("RETH",),
    Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE: ("RETH", "ImmDt"),
    Op.RDMA_READ_REQUEST: ("RETH",),
    Op.RDMA_READ_RESPONSE_FIRST: ("AETH",),
    Op.RDMA_READ_RESPONSE_LAST: ("AETH",),
    Op.RDMA_READ_RESPONSE_ONLY: ("AETH",),
    Op.ACKNOWLEDGE: ("AETH",),
    Op.ATOMIC_ACKNOWLEDGE: ("AETH", "AtomicAckETH"),
    Op.COMPARE_SWAP: ("AtomicETH",),
    Op.FETCH_ADD: ("AtomicETH",),
    Op.SEND_LAST_WITH_INVALIDATE: ("IETH",),
    Op.SEND_ONLY_WITH_INVALIDATE: ("IETH",),
}
SIZES = {"RETH": 16, "AETH": 4, "DETH": 8, "ImmDt": 4, "IETH": 4, "AtomicETH": 28, "AtomicAckETH": 8}

_WHOLE_UC = frozenset(range(Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE + 1))
_DATAGRAM = frozenset({Op.SEND_ONLY, Op.SEND_ONLY_WITH_IMMEDIATE})


def _known() -> dict[int, str]:
    names = {CNP: "CNP"}
    for transport in Transport:
        for op in Op:
            if transport is Transport.UC and op not in _WHOLE_UC:
                continue
            if transport is Transport.UD and op not in _DATAGRAM:
                continue
            if op is Op.RESYNC and transport is not Transport.RD:
                continue
            names[transport | op] = f"{transport.name}_{op.name}"
    return names


#: Opcode -> name, of every opcode the specification defines for these services.
NAMES: dict[int, str] = _known()


def extensions(opcode: int) -> tuple[str, ...]:
    """The names of the headers between BTH and payload. XRC and RD headers of their own are not modelled."""
    if opcode == CNP or opcode not in NAMES:
        return ()
    found = EXTENSIONS.get(opcode & 0x1F, ())
    return ("DETH", *found) if opcode >> 5 == Transport.UD >> 5 else found


#: Opcode -> bytes of extended headers.
EXTENSION_BYTES = {opcode: sum(SIZES[h] for h in extensions(opcode)) for opcode in NAMES}

#: Operations by their place in a message.
FIRST = frozenset({Op.SEND_FIRST, Op.RDMA_WRITE_FIRST})
MIDDLE = frozenset({Op.SEND_MIDDLE, Op.RDMA_WRITE_MIDDLE})
LAST = frozenset({
    Op.SEND_LAST, Op.SEND_LAST_WITH_IMMEDIATE, Op.SEND_LAST_WITH_INVALIDATE, Op.RDMA_WRITE_LAST,
    Op.RDMA_WRITE_LAST_WITH_IMMEDIATE,
})  # fmt: skip
ONLY = frozenset({
    Op.SEND_ONLY, Op.SEND_ONLY_WITH_IMMEDIATE, Op.SEND_ONLY_WITH_INVALIDATE, Op.RDMA_WRITE_ONLY,
    Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
})  # fmt: skip
READ_RESPONSES = frozenset({
    Op.RDMA_READ_RESPONSE_FIRST, Op.RDMA_READ_RESPONSE_MIDDLE, Op.RDMA_READ_RESPONSE_LAST, Op.RDMA_READ_RESPONSE_ONLY,
})  # fmt: skip
