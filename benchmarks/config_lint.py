"""How long `config-lint` takes: one switch of 64 ports, and a fabric of 128 switches; whole commands. Prints JSON.

.venv/bin/python benchmarks/config_lint.py [--runs N]
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
from pathlib import Path

from fabtest.render import iter_files, write_tree
from fabtest.topology import load_fabric_text, topology_path
from fabtest.topology.load import read_topology

SWITCH = "kind: clos\nleaves: 1\nspines: 1\nservers_per_leaf: 63\nswitches: {leaf: {ports: 64}}\n"


def lint(path: Path, runs: int) -> float:
    """Median seconds of the command."""
    program = str(Path(sys.executable).with_name("fabtest"))
    taken = []
    for _ in range(runs):
        start = time.monotonic()
        subprocess.run([program, "config-lint", str(path)], capture_output=True, check=True)
        taken.append(time.monotonic() - start)
    return round(statistics.median(taken), 3)


def main() -> None:
    """Render, lint, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small", Path(folder) / "large"
        write_tree(iter_files(load_fabric_text(SWITCH, "s.yml", default_name="s")), small)
        source = read_topology(topology_path("clos-112x16"))
        fabric = load_fabric_text(source, "l.yml", default_name="l")
        write_tree(iter_files(fabric), large)
        print(json.dumps({
            "date": time.strftime("%Y-%m-%d"), "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
            "runs": options.runs,
            "switch_of_64_ports_s": lint(small / "leaf1", options.runs),
            "fabric": {"switches": len(fabric.switches), "seconds": lint(large, options.runs)},
        }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
