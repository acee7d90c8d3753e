"""A fabric drawn as an engineer would: tiers in rows, super-spines on top and servers below, units framed, rails in
colour, the second plane dashed; what is broken in a live lab is red. Pure: a fabric and its state to SVG or HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from fabtest.model import Fabric, Link, Server, Switch, Tier
from fabtest.topology.units import format_speed

BOX_W, BOX_H, GAP, ROW, MARGIN = 92, 34, 18, 118, 36
#: One colour per rail, distinguishable also for colour-blind readers (Okabe and Ito, 2008), then again.
RAILS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7f00", "#666666")
GREY, RED, ORANGE, INK, PAPER = "#8c96a3", "#d1242f", "#e5811c", "#1f2933", "#ffffff"
FILL = {Tier.SUPERSPINE: "#e8e3f5", Tier.SPINE: "#dfeafa", Tier.LEAF: "#e3f4ea", Tier.SERVER: "#f4f1e8"}


@dataclass(frozen=True, slots=True)
class LiveState:
    """What is known of a lab: node -> ``ok|degraded|off``, and why a link (by its text) is down."""

    nodes: Mapping[str, str]
    links: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Spot:
    x: float
    y: float


def _rows(fabric: Fabric) -> list[tuple[Tier, list[Switch | Server]]]:
    rows: list[tuple[Tier, list[Switch | Server]]] = []
    for tier in (Tier.SUPERSPINE, Tier.SPINE, Tier.LEAF):
        members: list[Switch | Server] = sorted((s for s in fabric.switches if s.tier is tier), key=_plane_and_unit)
        if members:
            rows.append((tier, members))
    if fabric.servers:
        rows.append((Tier.SERVER, list(fabric.servers)))
    return rows


def _plane_and_unit(node: Switch | Server) -> tuple[int, int]:
    return node.plane if isinstance(node, Switch) else 0, node.unit or 0


def _place(rows: list[tuple[Tier, list[Switch | Server]]]) -> tuple[dict[str, _Spot], float, float]:
    pitch = BOX_W + GAP
    width = max((len(members) for _, members in rows), default=1) * pitch
    spots: dict[str, _Spot] = {}
    for level, (_, members) in enumerate(rows):
        step = width / len(members)
        for n, node in enumerate(members):
            spots[node.name] = _Spot(MARGIN + step * (n + 0.5), MARGIN + 40 + level * ROW)
    return spots, width + 2 * MARGIN, MARGIN + 40 + (len(rows) - 1) * ROW + 76


def fabric_svg(fabric: Fabric, state: LiveState | None = None) -> str:
    """The drawing. Every node and link has a title, which browsers show as a tooltip."""
    rows = _rows(fabric)
    spots, width, height = _place(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        f'<text x="{MARGIN}" y="28" font-size="16" fill="{INK}">{escape(_title(fabric))}</text>',
        *_frames(rows, spots),
        *(_link(link, shift, spots, state) for link, shift in zip(fabric.links, _shifts(fabric), strict=True)),
        *(_node(node, spots[node.name], tier, state) for tier, members in rows for node in members),
        *_legend(fabric, width, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(fabric: Fabric) -> str:
    gpus = sum(nic.gpus for s in fabric.servers for nic in s.nics)
    nodes = f"{len(fabric.switches)} switches, {len(fabric.servers)} servers, {gpus} GPUs"
    return f"{fabric.name}: {nodes}, {len(fabric.links)} links"


def _frames(rows: list[tuple[Tier, list[Switch | Server]]], spots: dict[str, _Spot]) -> list[str]:
    """A frame round the nodes of each unit in a row."""
    parts = []
    for tier, members in rows:
        groups: dict[tuple[int, int], list[str]] = {}
        for node in members:
            if node.unit is not None:
                groups.setdefault((getattr(node, "plane", 1), node.unit), []).append(node.name)
        if len(groups) < 2:
            continue
        for (plane, unit), names in groups.items():
            xs = [spots[n].x for n in names]
            left, right, y = min(xs) - BOX_W / 2 - 7, max(xs) + BOX_W / 2 + 7, spots[names[0]].y
            label = f"unit {unit}" + (f", plane {plane}" if tier is not Tier.SERVER and plane > 1 else "")
            parts.append(
                f'<rect x="{left:.1f}" y="{y - BOX_H / 2 - 7:.1f}" width="{right - left:.1f}" height="{BOX_H + 14}" '
                f'rx="8" fill="none" stroke="#cbd2d9"><title>{label}</title></rect>'
            )
    return parts


def _shifts(fabric: Fabric) -> list[float]:
    """Where each cable leaves its boxes, off centre: several cables between two nodes stand side by side."""
    count = Counter((link.a.node, link.b.node) for link in fabric.links)
    seen: Counter[tuple[str, str]] = Counter()
    shifts = []
    for link in fabric.links:
        pair = (link.a.node, link.b.node)
        shifts.append((seen[pair] - (count[pair] - 1) / 2) * min(8.0, (BOX_W - 10) / count[pair]))
        seen[pair] += 1
    return shifts


def _link(link: Link, shift: float, spots: dict[str, _Spot], state: LiveState | None) -> str:
    a, b = spots[link.a.node], spots[link.b.node]
    why = state.links.get(str(link), "") if state else ""
    colour = (
        RED
        if why and "drops every frame" not in why
        else ORANGE
        if why
        else RAILS[(link.rail - 1) % 8]
        if link.rail
        else GREY
    )
    dash = ' stroke-dasharray="6 4"' if link.plane > 1 else ""
    title = f"{link}, {format_speed(link.speed)}, {link.length_m} m" + (f": {why}" if why else "")
    return (
        f'<line x1="{a.x + shift:.1f}" y1="{a.y - BOX_H / 2:.1f}" x2="{b.x + shift:.1f}" y2="{b.y + BOX_H / 2:.1f}" '
        f'stroke="{colour}" stroke-width="{2.6 if why else 1.3}" stroke-opacity="{1 if why else 0.75}"{dash}>'
        f"<title>{escape(title)}</title></line>"
    )


def _node(node: Switch | Server, spot: _Spot, tier: Tier, state: LiveState | None) -> str:
    how = state.nodes.get(node.name, "ok") if state else "ok"
    edge = {"ok": "#52606d", "degraded": ORANGE, "off": RED}.get(how, RED)
    if isinstance(node, Switch):
        note = f"rail {node.rail}" if node.rail else f"AS {node.asn}"
        loopbacks = ", ".join(map(str, node.loopbacks))
        title = f"{node.name}: {tier.name.lower()}, plane {node.plane}, AS {node.asn}, {loopbacks}"
    else:
        note = f"{sum(nic.gpus for nic in node.nics)} GPUs"
        title = f"{node.name}: " + ", ".join(f"{p.name} {' '.join(str(a.ip) for a in p.addresses)}" for p in node.ports)
    left, top = spot.x - BOX_W / 2, spot.y - BOX_H / 2
    return (
        f"<g><title>{escape(title)}{'' if how == 'ok' else ' - ' + how}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{BOX_W}" height="{BOX_H}" rx="5" fill="{FILL[tier]}" '
        f'stroke="{edge}" stroke-width="{1.2 if how == "ok" else 2.6}"/>'
        f'<text x="{spot.x:.1f}" y="{spot.y - 2:.1f}" text-anchor="middle" fill="{INK}">{escape(node.name)}</text>'
        f'<text x="{spot.x:.1f}" y="{spot.y + 12:.1f}" text-anchor="middle" font-size="9" fill="#52606d">'
        f"{escape(note)}</text></g>"
    )


def _legend(fabric: Fabric, width: float, height: float) -> list[str]:
    rails = sorted({link.rail for link in fabric.links if link.rail})
    parts, x, y = [], float(MARGIN), height - 14
    for rail in rails[:16]:
        colour = RAILS[(rail - 1) % 8]
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 18}" y2="{y}" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 23}" y="{y + 4}" font-size="10" fill="{INK}">rail {rail}</text>')
        x += 68
    if len(fabric.planes) > 1:
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{GREY}" stroke-width="2" stroke-dasharray="6 4"/>'
        )
        parts.append(f'<text x="{x + 29}" y="{y + 4}" font-size="10" fill="{INK}">plane 2</text>')
    return parts


def fabric_html(fabric: Fabric, state: LiveState | None = None) -> str:
    """A page with the drawing and, below it, what is broken."""
    broken = "".join(f"<li>{escape(link)}: {escape(why)}</li>" for link, why in (state.links if state else {}).items())
    note = f"<h2>Links that are down</h2><ul>{broken}</ul>" if broken else "<p>No link is down.</p>" if state else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(fabric.name)}</title>"
        "<style>body{font:14px sans-serif;margin:1.5em;color:#1f2933}"
        "svg{max-width:100%;height:auto;border:1px solid #e4e7eb}"
        "line:hover{stroke-width:5}</style>"
        f"<body>{fabric_svg(fabric, state)}{note}</body></html>\n"
    )
