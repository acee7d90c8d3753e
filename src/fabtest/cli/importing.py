"""fabric-import: needs no root and no lab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabtest.cli.common import JSON, err, fabtest_task, out, print_json, print_table

if TYPE_CHECKING:
    from fabtest.importer.topology import Imported


@fabtest_task(
    positional=["folder"],
    help={
        "folder": "a folder of configurations: <switch>/config_db.json (and frr.conf, switch.json, lldp.txt or "
        "appl_db.json beside it), or <switch>.json files; and cabling.csv, if there is one",
        "out": "the topology file to write; default <folder's name>.yml in the working directory",
        "name": "name of the fabric; default: the folder's",
        "partial": "go on without the cables and switches that nothing tells of",
        "force": "replace a topology file that is there already",
        "json": JSON,
    },
)
def fabric_import(
    c: Any,
    folder: str,
    out: str = "",
    name: str = "",
    partial: bool = False,
    force: bool = False,
    json: bool = False,
) -> None:
    """Make a topology of a folder of SONiC configurations: fabric-import DIR --out topology.yml.

    Cables are inferred from DEVICE_NEIGHBOR, LLDP, shared subnets, BGP neighbours and cabling.csv, in this order;
    tiers, rails and planes from the cables. A lab of the topology runs the original files as they are.
    """
    from fabtest.errors import ConfigError, UsageError
    from fabtest.importer.files import node_name, read_given
    from fabtest.importer.topology import understand
    from fabtest.lint.cabling import read_cabling
    from fabtest.topology import load_fabric_text
    from fabtest.topology.units import NAME

    root = Path(folder)
    fabric_name = name or node_name(root.resolve().name)
    if not NAME.match(fabric_name):
        raise UsageError(f"{fabric_name!r} is no name for a fabric", hint="choose one with --name")
    target = Path(out or f"{fabric_name}.yml")
    found = understand(fabric_name, read_given(root), read_cabling(root))
    if found.cabling.missing and not partial:
        raise ConfigError(
            f"{folder}: the fabric is not whole:\n" + "\n".join(f"  {text}" for text in found.cabling.missing),
            hint="add the files that are missing, or a cabling.csv (a,a_port,b,b_port) beside them; or --partial",
        )
    if not found.cabling.cables:
        raise ConfigError(f"{folder}: nothing tells of a cable", hint="add a cabling.csv (a,a_port,b,b_port)")
    text = found.text(os.path.relpath(root, target.resolve().parent))
    load_fabric_text(text, str(target), default_name=fabric_name)  # whatever is wrong is said now, and nothing written
    _write(target, text, force)
    if json:
        print_json(_as_json(found, target))
        return
    _show(found, target)


def _write(target: Path, text: str, force: bool) -> None:
    from fabtest.errors import FileProblem

    try:
        if target.exists() and target.read_text(errors="replace") != text and not force:
            raise FileProblem(f"{target} is there already", hint="--force replaces it; or choose another with --out")
        target.write_text(text)
    except OSError as error:
        raise FileProblem(f"cannot write {target}: {error.strerror}") from None


def _as_json(found: Imported, target: Path) -> dict[str, Any]:
    from fabtest.importer.limits import limits_of

    return {
        "topology": str(target),
        "name": found.name,
        "switches": [
            {
                "name": s.name, "hostname": s.hostname, "tier": found.roles.switch[s.name].tier.name.lower(),
                "plane": found.roles.switch[s.name].plane, "unit": found.roles.switch[s.name].unit,
                "rail": found.roles.switch[s.name].rail, "routing": str(s.routing.form), "limits": limits_of(s),
            }
            for s in found.switches
        ],
        "servers": found.cabling.servers,
        "cables": [
            {"a": f"{x.a}:{x.a_port}", "b": f"{x.b}:{x.b_port}", "source": x.source} for x in found.cabling.cables
        ],
        "contradictions": found.cabling.contradictions,
        "missing": found.cabling.missing,
        "notes": [*found.cabling.notes, *found.roles.notes],
    }  # fmt: skip


def _show(found: Imported, target: Path) -> None:
    from fabtest.importer.limits import limits_of

    rows = []
    for s in found.switches:
        role = found.roles.switch[s.name]
        cables = sum(s.name in (x.a, x.b) for x in found.cabling.cables)
        rows.append(
            [s.name, s.hostname, role.tier.name.lower(), str(role.unit or "-"), str(role.rail or "-"), str(role.plane),
             str(s.routing.form), str(cables)]
        )  # fmt: skip
    print_table(["NAME", "HOSTNAME", "TIER", "UNIT", "RAIL", "PLANE", "ROUTING", "CABLES"], rows)
    sources: dict[str, int] = {}
    for x in found.cabling.cables:
        sources[x.source] = sources.get(x.source, 0) + 1
    told = ", ".join(f"{count} by {source}" for source, count in sources.items())
    out.print(f"\n{len(found.cabling.cables)} cables ({told}), {len(found.cabling.servers)} servers")
    for text in (*found.cabling.notes, *found.roles.notes):
        err.print(f"note: {text}")
    for text in found.cabling.contradictions:
        err.print(f"contradiction: {text}")
    for text in found.cabling.missing:
        err.print(f"left out: {text}")
    limits: dict[str, list[str]] = {}
    for s in found.switches:
        for text in limits_of(s):
            limits.setdefault(text, []).append(s.name)
    for text, names in limits.items():
        who = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        err.print(f"not honoured in a lab: {who}: {text}")
    out.print(f"{target} written; `lab-up {target}` runs these configurations")
