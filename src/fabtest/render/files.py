"""The tree of files of a fabric, on disk and compared with what is on disk."""

from __future__ import annotations

import csv
import difflib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from fabtest import __version__
from fabtest.errors import FileProblem
from fabtest.model import Fabric, Switch
from fabtest.render.server import server_network, server_script
from fabtest.sonic.config_db import render_config_db
from fabtest.sonic.db import switch_json
from fabtest.sonic.frr import render_frr
from fabtest.sonic.routing_config import RoutingForm, routing_config
from fabtest.topology.units import format_speed

#: Relative path -> content.
Tree = dict[str, bytes]


def to_json(value: Any) -> bytes:
    """Indented JSON with a final newline."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def render_fabric(fabric: Fabric) -> Tree:
    """Every file of a fabric. Pure: the same fabric gives the same bytes."""
    return dict(iter_files(fabric))


def iter_files(fabric: Fabric) -> Iterator[tuple[str, bytes]]:
    """The same one by one, for fabrics whose files together are large."""
    yield "fabric.json", to_json(normalised(fabric))
    yield "inventory.json", to_json(inventory(fabric))
    yield "cabling.csv", cabling(fabric).encode()
    for switch in fabric.switches:
        for name, content in switch_files(fabric, switch).items():
            yield f"{switch.name}/{name}", content
    for server in fabric.servers:
        network = server_network(fabric, server)
        yield f"{server.name}/network.json", to_json(network.as_json(server))
        yield f"{server.name}/network.sh", server_script(server, network).encode()


def switch_files(fabric: Fabric, switch: Switch) -> dict[str, bytes]:
    """Of one switch: those given as they are; FRR's is made of CONFIG_DB where SONiC makes it."""
    seeds = to_json({"SWITCH_TABLE:switch": switch_json(switch)})
    if not switch.given:
        return {
            "config_db.json": to_json(render_config_db(fabric, switch)),
            "frr.conf": render_frr(fabric, switch).encode(),
            "switch.json": seeds,
        }
    given = {name: content for name, content in switch.given.items() if name != "frr.conf"}
    frr = switch.given.get("frr.conf")
    routing = routing_config(render_config_db(fabric, switch), None if frr is None else frr.decode(errors="replace"))
    own = routing.form is RoutingForm.GIVEN and frr is not None
    return {
        **given,
        "frr.conf": frr if own and frr is not None else routing.text.encode(),
        **({} if "switch.json" in given else {"switch.json": seeds}),
    }


def cabling(fabric: Fabric) -> str:
    """``cabling.csv``: both ends, speed and length of every cable."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["a", "a_port", "b", "b_port", "speed", "length_m", "mtu", "plane", "rail"])
    for link in fabric.links:
        writer.writerow([
            link.a.node, link.a.port, link.b.node, link.b.port, format_speed(link.speed), link.length_m, link.mtu,
            link.plane, link.rail or "",
        ])  # fmt: skip
    return out.getvalue()


def inventory(fabric: Fabric) -> dict[str, Any]:
    """Nodes with the labels people filter by; shaped for Ansible and nornir (hosts by name, groups by tier)."""
    hosts: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    for s in fabric.switches:
        hosts[s.name] = {
            "role": s.tier.name.lower(), "plane": s.plane, "unit": s.unit, "rail": s.rail, "asn": s.asn,
            "loopbacks": [str(a) for a in s.loopbacks], "hwsku": s.kind.hwsku, "platform": "sonic",
        }  # fmt: skip
        groups.setdefault(s.tier.name.lower(), []).append(s.name)
    for server in fabric.servers:
        hosts[server.name] = {
            "role": "server", "unit": server.unit, "platform": "linux",
            "nics": [
                {
                    "number": nic.number, "rail": nic.rail, "gpus": nic.gpus,
                    "ports": [
                        {
                            "name": p.name, "plane": p.plane, "leaf": str(p.leaf),
                            "addresses": [str(a) for a in p.addresses],
                        }
                        for p in nic.ports
                    ],
                }
                for nic in server.nics
            ],
        }  # fmt: skip
        groups.setdefault("server", []).append(server.name)
    return {"fabric": fabric.name, "hosts": hosts, "groups": groups}


def normalised(fabric: Fabric) -> dict[str, Any]:
    """The topology with every default and name filled in."""
    qos = fabric.qos
    return {
        "name": fabric.name,
        "kind": str(fabric.shape),
        "fabtest": __version__,
        "counts": {
            "switches": len(fabric.switches),
            "servers": len(fabric.servers),
            "gpus": sum(nic.gpus for s in fabric.servers for nic in s.nics),
            "links": len(fabric.links),
        },
        "families": list(fabric.families),
        "fabric_links": "unnumbered" if fabric.unnumbered else "numbered",
        "mtu": fabric.mtu,
        "bgp": {
            "keepalive": fabric.bgp.keepalive_s, "holdtime": fabric.bgp.hold_s, "max_paths": fabric.bgp.max_paths,
            "bfd": fabric.bgp.bfd,
        },
        "qos": {
            "profile": qos.profile, "roce_dscp": qos.roce_dscp, "roce_tc": qos.roce_tc, "cnp_dscp": qos.cnp_dscp,
            "cnp_tc": qos.cnp_tc, "pfc_priorities": list(qos.pfc_priorities),
        },
        "switches": [
            {
                "name": s.name, "tier": s.tier.name.lower(), "plane": s.plane, "unit": s.unit, "rail": s.rail,
                "asn": s.asn, "hash_seed": s.hash.seed, "prefixes": [str(p) for p in s.server_prefixes],
            }
            for s in fabric.switches
        ],
        "links": [
            {"a": str(link.a), "b": str(link.b), "speed": format_speed(link.speed), "length": link.length_m}
            for link in fabric.links
        ],
    }  # fmt: skip


def write_tree(files: Iterable[tuple[str, bytes]], folder: Path) -> tuple[int, int]:
    """Write the files (of ``iter_files``) below ``folder``; (written, already right). Each file is replaced whole.

    Only files fabtest renders are touched. Raises FileProblem.
    """
    written = same = 0
    fresh = not folder.exists()
    made: set[Path] = set()
    try:
        for name, content in files:
            path = folder / name
            if fresh:  # nothing of anyone's to replace
                if path.parent not in made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made.add(path.parent)
                path.write_bytes(content)
                written += 1
                continue
            if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
                same += 1
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(content)
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            written += 1
    except OSError as error:
        where = error.filename or folder
        raise FileProblem(f"cannot write {where}: {error.strerror}", hint="choose another folder with --out") from None
    return written, same


def diff_tree(files: Iterable[tuple[str, bytes]], folder: Path) -> list[str]:
    """Unified diff from the files below ``folder`` to what would be rendered; empty if nothing would change."""
    lines: list[str] = []
    if not folder.is_dir():
        raise FileProblem(f"no such folder: {folder}", hint="render one with `config-render TOPOLOGY --out DIR`")
    seen = set()
    for name, content in files:
        seen.add(name)
        path = folder / name
        old = path.read_bytes() if path.is_file() else b""
        if old != content:
            lines += difflib.unified_diff(
                old.decode(errors="replace").splitlines(keepends=True),
                content.decode().splitlines(keepends=True),
                f"{folder}/{name}" if path.is_file() else "/dev/null",
                f"new/{name}",
            )
    for path in sorted(folder.glob("*/config_db.json")):
        name = str(path.relative_to(folder))
        if name not in seen:
            lines.append(f"only in {folder}: {name}\n")
    return lines
