"""lab-graph: the picture of a fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fabtest.cli.common import LAB, err, fabtest_task
from fabtest.errors import FileProblem, MachineError, UsageError


@fabtest_task(
    optional=["topology"],
    help={
        "topology": "draw this topology; left out: the running lab, with its live state",
        "out": "file to write, .svg, .html or .png; default <name>.svg",
        "lab": LAB,
    },
)
def lab_graph(c: Any, topology: str | None = None, out: str = "", lab: str = "") -> None:
    """Draw a fabric, tiers in rows and rails in colour: lab-graph [TOPOLOGY] [--out FILE.svg|.html|.png]."""
    from fabtest.report.graph import LiveState, fabric_html, fabric_svg

    state = None
    if topology:
        from fabtest.topology import load_fabric, topology_path

        fabric = load_fabric(topology_path(topology))
    else:
        from fabtest.checks.status import lab_status
        from fabtest.cli.common import the_lab

        live = the_lab(lab)
        fabric = live.fabric
        status = lab_status(live)
        state = LiveState(
            {n.name: n.state for n in status.nodes}, {str(h.link): h.why for h in status.link_health if not h.up}
        )
    path = Path(out or f"{fabric.name}.svg")
    kind = path.suffix.lower()
    if kind == ".svg":
        content = fabric_svg(fabric, state).encode()
    elif kind in (".html", ".htm"):
        content = fabric_html(fabric, state).encode()
    elif kind == ".png":
        content = _png(fabric_svg(fabric, state))
    else:
        raise UsageError(f"{path}: not a kind of picture", hint="end the name in .svg, .html or .png")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise FileProblem(f"cannot write {path}: {error.strerror}") from None
    err.print(f"{path}: {len(content)} bytes")


def _png(svg: str) -> bytes:
    try:
        import cairosvg
    except (ImportError, OSError):
        hint = "pip install 'fabtest[png]' and apt-get install libcairo2, or write .svg"
        raise MachineError("PNG needs CairoSVG and the cairo library", hint=hint) from None
    try:
        return bytes(cairosvg.svg2png(bytestring=svg.encode(), scale=1.5))
    except Exception as error:  # cairo's own errors have no common base; it refuses pictures beyond 32,767 points
        raise UsageError(f"cairo cannot draw this: {error}", hint="large fabrics: write .svg or .html") from None
