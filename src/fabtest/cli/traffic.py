"""traffic-send, traffic-receive: RoCEv2 flows in their simple form."""

from __future__ import annotations

import time
from typing import Any

from invoke.exceptions import Exit

from fabtest.cli.common import JSON, LAB, err, fabtest_task, out, print_json, the_lab


@fabtest_task(
    positional=["src", "dst"],
    help={
        "src": "server, or SERVER:PORT for another than its first NIC port",
        "dst": "the same, of the receiver",
        "count": "packets in all",
        "flows": "flows, which differ in UDP source port only",
        "pps": "packets per second in all; 0: as fast as it goes",
        "size": "payload in bytes",
        "dscp": "DSCP of the packets",
        "ipv6": "use IPv6",
        "lab": LAB,
        "json": JSON,
    },
)
def traffic_send(
    c: Any, src: str, dst: str, count: int = 1000, flows: int = 1, pps: int = 1000, size: int = 64, dscp: int = 26,
    ipv6: bool = False, lab: str = "", json: bool = False,
) -> None:  # fmt: skip
    """Send RoCEv2 packets from one server to another and count what arrives: traffic-send SRC DST.

    Exit code 1 if anything was lost or arrived damaged.
    """
    from fabtest.roce.send import nic_named
    from fabtest.roce.transfer import transfer

    live = the_lab(lab)
    family = 6 if ipv6 else live.fabric.families[0]
    result = transfer(
        live, nic_named(live, src, family), nic_named(live, dst, family), count=count, flows=flows, pps=pps,
        payload=size, dscp=dscp,
    )  # fmt: skip
    if json:
        print_json(result.as_json())
    else:
        out.print(result.sentence())
    if result.lost or result.bad_icrc:
        raise Exit(code=1)


@fabtest_task(
    positional=["node"],
    help={
        "node": "server or switch",
        "seconds": "how long",
        "count": "stop after so many packets",
        "lab": LAB,
        "json": JSON,
    },
)
def traffic_receive(
    c: Any, node: str, seconds: float = 10.0, count: int = 0, lab: str = "", json: bool = False
) -> None:
    """Watch RoCEv2 packets arrive at a node, flow by flow: traffic-receive NODE."""
    from fabtest.cli.common import print_table
    from fabtest.roce.capture import Capture
    from fabtest.roce.transfer import Tally

    live = the_lab(lab)
    tally = Tally()
    end = time.monotonic() + seconds
    err.print(f"receiving at {node} for {seconds:g} s")
    with Capture(live.node(node).netns, whole=True) as capture:
        while time.monotonic() < end and not (count and tally.packets >= count):
            for frame, port in capture.frames():
                tally.add(frame, port)
            time.sleep(0.005)
    rows = tally.rows()
    if json:
        print_json(rows)
    else:
        heads = ["SOURCE", "DESTINATION", "SPORT", "IN", "DSCP", "PACKETS", "CE", "BAD ICRC"]
        print_table(heads, [[str(v) for v in row.values()] for row in rows])
        err.print(f"{tally.packets} packets")
