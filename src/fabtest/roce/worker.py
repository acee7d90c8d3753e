"""An engine process: its plan comes by standard input, snapshots and the result go by standard output, pickled.

It ends when its standard input closes, so it never outlives whoever started it.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
from typing import Any

from fabtest.errors import FabtestError
from fabtest.roce.engine import Engine, Snapshot


def put(handle: int, value: Any) -> None:
    """A value, length first."""
    data = pickle.dumps(value)
    view = memoryview(struct.pack("!I", len(data)) + data)
    while view:
        view = view[os.write(handle, view) :]


def get(handle: int) -> Any:
    """The next value; None at the end."""
    size = _exactly(handle, 4)
    if not size:
        return None
    data = _exactly(handle, struct.unpack("!I", size)[0])
    return pickle.loads(data) if data else None


def _exactly(handle: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(handle, count - len(data))
        if not part:
            return b""
        data += part
    return data


def main() -> None:
    """Plan, ready, start time, snapshots, result."""
    # An interrupt at the terminal is the parent's to handle: it closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Asked to end, it gives the servers their ports back first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    source, sink = 0, os.dup(1)
    os.dup2(2, 1)
    plan = get(source)
    if plan is None:
        return
    try:
        engine = Engine(plan)
    except FabtestError as error:
        put(sink, error)
        return
    try:
        put(sink, "ready")
        start_ns = get(source)
        if start_ns is None:
            return

        def watch(snapshot: Snapshot) -> None:
            put(sink, snapshot)

        def stopped() -> bool:
            return bool(select.select([source], [], [], 0)[0])

        engine.run(start_ns, watch=watch, stopped=stopped)
        put(sink, engine.result())
    except (FabtestError, BrokenPipeError) as error:
        try:
            put(sink, error)
        except OSError:
            pass
    finally:
        engine.close()


if __name__ == "__main__":
    main()
