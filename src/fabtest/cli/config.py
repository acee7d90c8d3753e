"""config-render, topologies, topology-schema: need no root and no lab."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit

from fabtest.cli.common import JSON, err, fabtest_task, out, print_json, print_table


@fabtest_task(
    positional=["topology"],
    help={
        "topology": "a topology file, or the name of a shipped one",
        "out": "folder to write to; default labs/<name>. Only rendered files are replaced",
        "format": "files (default), or with them: containerlab (a topology to deploy), clabernetes (for Kubernetes), "
        "air (NVIDIA Air)",
        "diff": "compare with the files in this folder and write nothing; exit code 1 if anything would change",
        "json": JSON,
    },
)
def config_render(
    c: Any, topology: str, out: str = "", format: str = "files", diff: str = "", json: bool = False
) -> None:
    """Render what production would get: config_db.json and frr.conf per switch, addressing per server, cabling."""
    from fabtest.render import diff_tree, write_tree
    from fabtest.render.formats import formatted_files
    from fabtest.topology import load_fabric, topology_path

    fabric = load_fabric(topology_path(topology))
    files = formatted_files(fabric, format)
    if diff:
        lines = diff_tree(files, Path(diff))
        if json:
            print_json({"changed": bool(lines), "diff": "".join(lines)})
        else:
            sys.stdout.writelines(lines)
        if lines:
            raise Exit(code=1)
        err.print(f"{diff} is what {topology} renders")
        return
    folder = Path(out or f"labs/{fabric.name}")
    written, same = write_tree(files, folder)
    if json:
        print_json({"folder": str(folder), "written": written, "unchanged": same})
        return
    what = f"{len(fabric.switches)} switches, {len(fabric.servers)} servers, {len(fabric.links)} cables"
    print(f"{folder}: {what}; {written} files written, {same} unchanged")


@fabtest_task(help={"json": JSON})
def topologies(c: Any, json: bool = False) -> None:
    """The topologies that come with fabtest."""
    from fabtest.topology import load_fabric, shipped_topologies

    rows = []
    for name, path in shipped_topologies().items():
        fabric = load_fabric(path)
        first = next((line[1:].strip() for line in path.read_text().splitlines() if line.startswith("#")), "")
        rows.append({
            "name": name, "kind": str(fabric.shape), "switches": len(fabric.switches), "servers": len(fabric.servers),
            "gpus": sum(nic.gpus for s in fabric.servers for nic in s.nics), "links": len(fabric.links),
            "about": first, "file": str(path),
        })  # fmt: skip
    if json:
        print_json(rows)
        return
    heads = ["NAME", "KIND", "SWITCHES", "SERVERS", "GPUS", "LINKS", "ABOUT"]
    keys = ("name", "kind", "switches", "servers", "gpus", "links", "about")
    print_table(heads, [[str(r[k]) for k in keys] for r in rows])
    out.print(f"\nfiles: {shipped_topologies()['clos-2x2'].parent}" if rows else "none found")


@fabtest_task(help={"out": "file to write; default: standard output"})
def topology_schema(c: Any, out: str = "") -> None:
    """JSON Schema of topology files, for editors (yaml-language-server: $schema=...)."""
    from fabtest.topology.schema import json_schema

    text = jsonlib.dumps(json_schema(), indent=2) + "\n"
    if out:
        from fabtest.errors import FileProblem

        try:
            Path(out).write_text(text)
        except OSError as error:
            raise FileProblem(f"cannot write {out}: {error.strerror}") from None
    else:
        sys.stdout.write(text)
