"""lab-up, lab-down, lab-list, lab-status, lab-exec, lab-shell, lab-logs."""

from __future__ import annotations

import os
import time
from typing import Any

from invoke.exceptions import Exit

from fabtest.cli.common import JSON, LAB, err, fabtest_task, out, print_json, print_table, the_lab
from fabtest.cli.stages import Stages
from fabtest.cli.words import remainder
from fabtest.errors import LabError, UsageError

DEFAULT_TOPOLOGY = "clos-2x2"


@fabtest_task(
    optional=["topology"],
    help={
        "topology": "a topology file, the name of a shipped one (see `topologies`), or a folder of configurations; "
        f"default {DEFAULT_TOPOLOGY}",
        "name": "name of the lab; default: the topology's",
        "runtime": "netns (network namespaces) or containerlab (containers; see `images`); default: $FABTEST_RUNTIME, "
        "else what the topology says",
        "wait": "wait until the fabric has converged as designed (--no-wait: return once it is built)",
        "timeout": "seconds to wait for convergence",
        "locked": "a lock file (of `lab-lock`): refuse to build what differs from it",
        "json": JSON,
    },
)
def lab_up(
    c: Any,
    topology: str | None = None,
    name: str = "",
    runtime: str = "",
    wait: bool = True,
    timeout: float = 120.0,
    locked: str = "",
    json: bool = False,
) -> None:
    """Bring a fabric up as a lab: lab-up [TOPOLOGY] [--name NAME].

    Renders every configuration, builds nodes and links, starts the switches, and waits until every BGP session
    is up and every route is there with its full ECMP width.
    """
    from fabtest.importer.load import fabric_of
    from fabtest.runtime.labs import chosen
    from fabtest.runtime.lock import check_lock, lab_lock, read_lock, write_lock
    from fabtest.runtime.namespaces import require_root
    from fabtest.runtime.state import LabFolder

    require_root()
    fabric, source = fabric_of(topology or DEFAULT_TOPOLOGY)
    lab_name = name or fabric.name
    labs = chosen(runtime, fabric.emulation.runtime)
    wanted = read_lock(locked) if locked else None
    start = time.monotonic()
    with LabFolder(lab_name).lock(), Stages() as stages:
        lock = lab_lock(fabric, source, labs.name)
        if wanted is not None:
            check_lock(wanted, lock, locked)
        lab = labs.deploy(fabric, source, lab_name, stages.begin)
        write_lock(lock, LabFolder(lab_name))
        if wait:
            from fabtest.checks.converge import wait_converged

            stages.begin("converge", 0, len(fabric.switches))
            wait_converged(lab, timeout, lambda done, total: stages.begin("converge", done, total))
    seconds = time.monotonic() - start
    if json:
        print_json({
            "lab": lab_name, "topology": fabric.name, "runtime": labs.name, "switches": len(fabric.switches),
            "servers": len(fabric.servers), "links": len(fabric.links), "converged": wait,
            "seconds": round(seconds, 3),
            "stages": {k: round(v, 3) for k, v in stages.seconds.items()},
        })  # fmt: skip
        return
    err.print("  ".join(f"{stage} {spent:.2f} s" for stage, spent in stages.seconds.items()), style="dim")
    what = f"{len(fabric.switches)} switches, {len(fabric.servers)} servers, {len(fabric.links)} links"
    out.print(f"lab {lab_name} is up{' and converged' if wait else ''}: {what}, in {seconds:.1f} s")
    first = fabric.switches[0].name
    server = fabric.servers[0].name if fabric.servers else first
    err.print("next:")
    for command, meaning in (
        ("lab-status", "nodes, links, sessions, ECMP width"),
        (f"show {first} ip bgp summary", "a switch, as SONiC shows it"),
        (f"lab-exec {server} -- ip route", "a command in a node"),
        ("lab-test", "prove the fabric: underlay, ECMP, QoS configuration, failover"),
        ("lab-down", "take it down"),
    ):
        err.print(f"  {command:34} {meaning}")


@fabtest_task(
    optional=["lab"],
    help={"lab": LAB, "all": "every lab of fabtest on this machine, also half built ones"},
)
def lab_down(c: Any, lab: str | None = None, all: bool = False) -> None:
    """Take a lab down: lab-down [LAB] or lab-down --all. Nothing of it is left."""
    from fabtest.runtime.labs import all_labs, runtime_of
    from fabtest.runtime.namespaces import require_root
    from fabtest.runtime.state import LabFolder

    require_root()
    known = [info.name for info in all_labs()]
    if all:
        names = known
    elif lab:
        names = [lab]
    elif len(known) <= 1:
        names = known
    else:
        raise LabError(f"several labs are there: {', '.join(known)}", hint="name one, or use --all")
    if not names:
        err.print("no lab is up")
    for name in names:
        start = time.monotonic()
        with LabFolder(name).lock(wait=10):
            found = runtime_of(name).destroy(name)
        if not found and not all:
            raise LabError(f"there is no lab {name}", hint=f"labs: {', '.join(known) or 'none'}")
        out.print(f"lab {name} is down ({time.monotonic() - start:.1f} s)")


@fabtest_task(help={"json": JSON})
def lab_list(c: Any, json: bool = False) -> None:
    """Labs on this machine."""
    from fabtest.runtime.labs import all_labs

    found = all_labs()
    if json:
        print_json([
            {k: getattr(info, k) for k in ("name", "state", "topology", "switches", "servers", "since", "runtime")}
            for info in found
        ])  # fmt: skip
        return
    rows = [[i.name, i.state, i.topology, str(i.switches), str(i.servers), i.since, i.runtime] for i in found]
    print_table(["LAB", "STATE", "TOPOLOGY", "SWITCHES", "SERVERS", "SINCE", "RUNTIME"], rows)


@fabtest_task(optional=["lab"], help={"lab": LAB, "out": "write it to this file instead of standard output"})
def lab_lock(c: Any, lab: str | None = None, out: str = "") -> None:
    """The lock of a lab: hashes of what was built and versions of what it was built with; see `lab-up --locked`."""
    import sys
    from pathlib import Path

    from fabtest.errors import FileProblem
    from fabtest.runtime.lock import LOCK
    from fabtest.runtime.state import LabFolder

    path = LabFolder(the_lab(lab or "").name).path / LOCK
    try:
        text = path.read_text()
    except OSError:
        raise LabError("this lab has no lock: it was built by an older fabtest", hint="`lab-up` it again") from None
    if not out:
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text)
    except OSError as error:
        raise FileProblem(f"cannot write {out}: {error.strerror}") from None
    err.print(f"{out} written")


@fabtest_task(optional=["lab"], help={"lab": LAB, "json": JSON, "all": "list every node and link, also of large labs"})
def lab_status(c: Any, lab: str | None = None, json: bool = False, all: bool = False) -> None:
    """Nodes, links, BGP sessions and ECMP widths, and what is not as designed. Exit code 1 if anything is not."""
    from fabtest.checks.status import lab_status as examine

    status = examine(the_lab(lab or ""))
    if json:
        print_json(status.as_json())
    else:
        rows = [
            [n.name, n.tier, str(n.plane or "-"), str(n.rail or "-"), n.state, n.sessions, n.routes, n.width]
            for n in status.nodes
        ]
        limit = 60
        hidden = len(rows) - limit if len(rows) > limit and not all else 0
        if hidden:
            rows = [r for n, r in zip(status.nodes, rows, strict=True) if n.state != "ok"] or rows[:limit]
        print_table(["NODE", "TIER", "PLANE", "RAIL", "STATE", "BGP", "ROUTES", "ECMP"], rows)
        if hidden:
            out.print(f"({len(status.nodes)} nodes; those not ok are shown, --all shows every one)")
        out.print()
        out.print(
            f"links: {status.links_up} of {status.links} up; BGP sessions: {status.established} of {status.sessions} up"
        )
        out.print(f"agent: {'running' if status.agent else 'not running'}")
        if status.trouble:
            out.print(f"\nnot as designed ({len(status.trouble)}):", style="bold red")
            shown = status.trouble if all else status.trouble[:20]
            for line in shown:
                out.print(f"  {line}")
            if len(shown) < len(status.trouble):
                out.print(f"  ... and {len(status.trouble) - len(shown)} more (--all)")
        else:
            out.print("everything is as designed", style="green")
    if status.trouble:
        raise Exit(code=1)


@fabtest_task(positional=["node"], help={"node": "switch or server", "lab": LAB, "timeout": "seconds"})
def lab_exec(c: Any, node: str, lab: str = "", timeout: float = 0.0) -> None:
    """Run a command in a node: lab-exec NODE -- COMMAND. Its exit code is this command's.

    In a switch /etc/sonic, /etc/frr and /run/redis are the switch's own, and `vtysh` and `redis-cli -s
    /run/redis/redis.sock` work as on SONiC.
    """
    argv = remainder()
    if not argv:
        raise UsageError("no command", hint=f"lab-exec {node} -- ip route")
    live = the_lab(lab).node(node)
    code = live.interactive(argv, timeout or None)
    if code:
        raise Exit(code=code)


@fabtest_task(positional=["node"], help={"node": "switch or server", "lab": LAB})
def lab_shell(c: Any, node: str, lab: str = "") -> None:
    """A shell in a node: lab-shell NODE."""
    live = the_lab(lab).node(node)
    os.environ["PS1"] = f"{node}:\\w# "
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    argv = [shell, "--norc", "-i"] if shell.endswith("bash") else [shell, "-i"]
    code = live.interactive(argv, None)
    if code:
        raise Exit(code=code)


@fabtest_task(
    optional=["node"],
    help={
        "node": "switch or server; left out: the lab's agent",
        "lab": LAB,
        "lines": "last lines of each log",
        "follow": "go on printing",
    },
)
def lab_logs(c: Any, node: str | None = None, lab: str = "", lines: int = 50, follow: bool = False) -> None:
    """Logs of a node's daemons, or of the lab's agent: lab-logs [NODE]."""
    import subprocess

    live = the_lab(lab)
    files = live.node(node).logs() if node else live.logs()
    files = [f for f in files if f.is_file() and (f.stat().st_size or follow)]
    if not files:
        err.print(f"{node or 'the agent'} has written no log")
        return
    argv = [
        "tail",
        "-n",
        str(lines),
        *(["-F"] if follow else []),
        *(["-v"] if len(files) > 1 else []),
        *map(str, files),
    ]
    subprocess.run(argv, check=False)
