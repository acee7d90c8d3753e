"""How long a lab takes to come up and go down, and what it weighs, by size; other builders of the same graph beside it.

    .venv/bin/python benchmarks/lab_up.py [--runs N] [--largest] [--containerlab]

Mininet builds hosts, nodes and links only: no routing, no databases, no convergence. ``--containerlab`` brings the
same fabric up as containers too (fabtest/sonic-lite), converged as well. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fabtest.checks.converge import wait_converged
from fabtest.runtime import processes
from fabtest.runtime.base import Lab, Runtime
from fabtest.runtime.labs import runtime_named
from fabtest.runtime.state import LabFolder
from fabtest.topology import load_fabric_text, topology_path
from fabtest.topology.load import read_topology

#: leaves, spines, servers per leaf
SIZES = ((2, 2, 2), (8, 4, 4), (16, 4, 4), (32, 8, 4))
LARGEST = (112, 16, 4)
NAME = "bench-lab-up"
#: The kernel frees the namespaces of the last run in the background; each run waits for that as long.
SETTLE_S = 8
PEER = """
import json, sys, time
from mininet.net import Mininet
from mininet.node import Host
graph = json.load(open(sys.argv[1]))
start = time.monotonic()
net = Mininet(controller=None, autoSetMacs=False, build=False)
nodes = {name: net.addHost(name, cls=Host) for name in graph["nodes"]}
for a, b in graph["links"]:
    net.addLink(nodes[a], nodes[b])
net.build()
built = time.monotonic()
net.stop()
print(json.dumps({"build_s": built - start, "stop_s": time.monotonic() - built}), file=sys.stderr)
"""


@dataclass
class Run:
    """One lab up and down. Seconds; bytes of memory of all of its processes (proportional set size)."""

    stages: dict[str, float]
    up: float
    down: float
    memory: int


def topology(size: tuple[int, int, int]) -> str:
    """The fabric of a size, as text."""
    leaves, spines, servers = size
    if size == LARGEST:
        return read_topology(topology_path("clos-112x16"))
    return f"kind: clos\nname: bench\nleaves: {leaves}\nspines: {spines}\nservers_per_leaf: {servers}\n"


def memory_of(lab: Lab) -> int:
    """Proportional set size of a lab's processes, in bytes."""
    total = 0
    for process in processes.of_lab(lab.name, [node.netns for node in lab.nodes()]):
        try:
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def run_lab(source: str, runtime: Runtime) -> Run:
    """Up, converged, weighed, down."""
    marks: list[tuple[str, float]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if not marks or marks[-1][0] != stage:
            marks.append((stage, time.monotonic()))

    with LabFolder(NAME).lock():
        start = time.monotonic()
        fabric = load_fabric_text(source, "bench.yml", default_name="bench")
        lab = runtime.deploy(fabric, source, NAME, progress)
        marks.append(("converge", time.monotonic()))
        wait_converged(lab, 300)
        end = time.monotonic()
        memory = memory_of(lab)
        down = time.monotonic()
        runtime.destroy(NAME)
        gone = time.monotonic()
    stages = {name: later - at for (name, at), (_, later) in zip(marks, [*marks[1:], ("", end)], strict=True)}
    return Run(stages, end - start, gone - down, memory)


def run_mininet(source: str) -> dict[str, float] | None:
    """The same graph in Mininet, with Debian's Python; None if it is not installed."""
    fabric = load_fabric_text(source, "bench.yml", default_name="bench")
    short = {name: f"n{i}" for i, name in enumerate(fabric.node_names)}
    graph = {"nodes": list(short.values()), "links": [[short[x.a.node], short[x.b.node]] for x in fabric.links]}
    with tempfile.TemporaryDirectory() as folder:
        script, data = Path(folder) / "peer.py", Path(folder) / "graph.json"
        script.write_text(PEER)
        data.write_text(json.dumps(graph))
        done = subprocess.run(["/usr/bin/python3", str(script), str(data)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith('{"build_s"')]
    return json.loads(lines[-1]) if lines else None


def median(values: list[float]) -> float:
    """Rounded to milliseconds."""
    return round(statistics.median(values), 3)


def in_containers(runs: list[Run], up: float, switches: int) -> dict[str, object] | None:
    """The same figures of the same fabric as containers."""
    if not runs:
        return None
    return {
        "up_s": median([r.up for r in runs]), "down_s": median([r.down for r in runs]),
        "stages": {stage: median([r.stages.get(stage, 0.0) for r in runs]) for stage in runs[0].stages},
        "mb_per_switch": round(statistics.median(r.memory for r in runs) / switches / 1e6, 1),
        "up_over_namespaces": round(median([r.up for r in runs]) / up, 2),
    }  # fmt: skip


def growth(rows: list[dict[str, object]], stage: str, by: str) -> float | None:
    """Exponent of a stage's time against a count: 1 is proportional, 2 is quadratic."""
    points = [(float(r[by]), float(r["stages"][stage])) for r in rows if r["stages"].get(stage, 0) > 0.02]  # type: ignore[index,arg-type,attr-defined]
    if len(points) < 2:
        return None
    x, y = np.log([p[0] for p in points]), np.log([p[1] for p in points])
    return round(float(np.polyfit(x, y, 1)[0]), 2)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each size; medians are printed (default 3)")
    parser.add_argument("--only", type=int, metavar="SWITCHES", help="only the size with so many switches")
    parser.add_argument("--largest", action="store_true", help="also clos-112x16: 128 switches, 448 servers")
    parser.add_argument("--containerlab", action="store_true", help="also as containers; needs Docker and `images`")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    sizes = (*SIZES, *((LARGEST,) if options.largest else ()))
    for size in (s for s in sizes if options.only in (None, s[0] + s[1])):
        source = topology(size)
        fabric = load_fabric_text(source, "bench.yml", default_name="bench")
        runs, peers, containers = [], [], []
        for n in range(options.runs):
            time.sleep(SETTLE_S)
            runs.append(run_lab(source, runtime_named("netns")))
            print(f"{size}: run {n + 1}: up {runs[-1].up:.2f} s, down {runs[-1].down:.2f} s", file=sys.stderr)
            if options.containerlab:
                time.sleep(SETTLE_S)
                containers.append(run_lab(source, runtime_named("containerlab")))
                print(
                    f"{size}: containers: up {containers[-1].up:.2f} s, down {containers[-1].down:.2f} s",
                    file=sys.stderr,
                )
            time.sleep(SETTLE_S)
            peer = run_mininet(source)
            if peer:
                peers.append(peer)
                print(f"{size}: mininet: {peer['build_s']:.2f} s, stop {peer['stop_s']:.2f} s", file=sys.stderr)
        up = median([r.up for r in runs])
        rows.append({
            "switches": len(fabric.switches), "servers": len(fabric.servers), "links": len(fabric.links),
            "up_s": up, "down_s": median([r.down for r in runs]),
            "stages": {stage: median([r.stages.get(stage, 0.0) for r in runs]) for stage in runs[0].stages},
            "mb_per_switch": round(statistics.median(r.memory for r in runs) / len(fabric.switches) / 1e6, 1),
            "containerlab": in_containers(containers, up, len(fabric.switches)),
            "mininet_build_s": median([p["build_s"] for p in peers]) if peers else None,
            "mininet_stop_s": median([p["stop_s"] for p in peers]) if peers else None,
            "up_over_mininet_build": round(up / median([p["build_s"] for p in peers]), 2) if peers else None,
        })  # fmt: skip
    stages = list(rows[-1]["stages"])  # type: ignore[call-overload]
    print(json.dumps({
        "date": time.strftime("%Y-%m-%d"), "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "runs": options.runs, "sizes": rows,
        "growth_with_switches": {s: growth(rows, s, "switches") for s in stages},
        "growth_with_links": {s: growth(rows, s, "links") for s in stages},
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
