"""Pictures and pages."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fabtest.report.graph import LiveState, fabric_html, fabric_svg
from fabtest.report.page import verdict_page
from fabtest.topology import load_fabric, shipped_topologies

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["clos-2x2", "rail-8x8", "dual-plane", "clos-3tier", "rail-only", "clos-112x16"])
def test_every_node_and_cable_is_drawn(name: str) -> None:
    fabric = load_fabric(shipped_topologies()[name])
    tree = ElementTree.fromstring(fabric_svg(fabric))
    texts = {t.text for t in tree.iter(f"{SVG}text")}
    assert set(fabric.node_names) <= texts
    lines = [line for line in tree.iter(f"{SVG}line") if line.find(f"{SVG}title") is not None]
    assert len(lines) == len(fabric.links)
    heights = {
        tier: {round(float(t.get("y", 0))) for t in tree.iter(f"{SVG}text") if t.text in names}
        for tier, names in {
            "leaf": {s.name for s in fabric.switches if s.tier == 1},
            "spine": {s.name for s in fabric.switches if s.tier == 2},
            "server": set(fabric.server),
        }.items()
        if names
    }
    assert all(len(ys) == 1 for ys in heights.values())
    if "spine" in heights:
        assert max(heights["spine"]) < min(heights["leaf"]) < min(heights["server"])


def test_rails_have_colours_and_what_is_down_is_red() -> None:
    fabric = load_fabric(shipped_topologies()["rail-4x4"])
    tree = ElementTree.fromstring(fabric_svg(fabric))
    colour = {}
    for line in tree.iter(f"{SVG}line"):
        title = line.find(f"{SVG}title")
        if title is not None and (title.text or "").startswith("gpu1"):
            colour[(title.text or "").partition(" ")[0]] = line.get("stroke")
    assert len(set(colour.values())) == 4
    broken = str(fabric.links[0])
    red = fabric_svg(fabric, LiveState({"leaf1": "off"}, {broken: "was cut"}))
    assert red.count("#d1242f") >= 2
    assert "was cut" in fabric_html(fabric, LiveState({}, {broken: "was cut"}))


def test_page_escapes_and_sums_up() -> None:
    fabric = load_fabric(shipped_topologies()["clos-2x2"])
    verdicts = [
        {"check": "a.b", "outcome": "fail", "sentence": "leaf1 <bad>", "numbers": {"n": 1}, "where": ["leaf1"]},
        {"check": "a.c", "outcome": "pass", "sentence": "fine", "numbers": {}, "where": []},
    ]
    page = verdict_page(fabric, "lab1", ["underlay"], verdicts, 1.5, LiveState({}, {}))
    assert "leaf1 &lt;bad&gt;" in page
    assert "1 pass, 1 fail" in page
