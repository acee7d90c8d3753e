"""lab-capture: packets of a port into a pcap file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fabtest.cli.common import LAB, err, fabtest_task, the_lab
from fabtest.errors import FileProblem, UsageError
from fabtest.runtime.processes import program


@fabtest_task(
    positional=["node", "port"],
    help={
        "node": "switch or server",
        "port": "interface, as Ethernet0 or eth1",
        "out": "pcap file to write; default: text on the terminal; -: pcap on standard output (wireshark -k -i -)",
        "count": "stop after so many packets",
        "seconds": "stop after so many seconds",
        "filter": "pcap filter, for example 'udp port 4791'",
        "lab": LAB,
    },
)
def lab_capture(
    c: Any, node: str, port: str, out: str = "", count: int = 0, seconds: float = 0.0, filter: str = "", lab: str = ""
) -> None:
    """Capture a port: lab-capture NODE PORT [--out FILE.pcap] [--filter 'udp port 4791']. Ctrl-C ends it."""
    live = the_lab(lab)
    chosen = live.node(node)
    ports = [link.end(node).port for link in live.fabric.links_of[node]]
    if port not in ports:
        raise UsageError(f"{node} has no cabled port {port}", hint=f"ports: {', '.join(ports)}")
    argv = [
        program("tcpdump", "tcpdump"),
        "-i",
        chosen.interface(port),
        "-n",
        "-U",
        *(["-c", str(count)] if count else []),
    ]
    if out:
        target = "-" if out == "-" else str(Path(out).absolute())
        if out != "-" and not Path(out).absolute().parent.is_dir():
            raise FileProblem(f"cannot write {out}: no such folder")
        argv += ["-w", target, "-Z", "root"]
    elif not sys.stdout.isatty():
        argv += ["-l"]
    if filter:
        argv += ["--", filter]
    code = chosen.interactive(argv, seconds or None)
    if out and out != "-" and Path(out).is_file():
        err.print(f"{out}: {Path(out).stat().st_size} bytes")
    if code not in (0, 124, 130):
        raise UsageError(f"tcpdump ended with code {code}")
