"""Verdicts of a run as one HTML page that stands alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from fabtest.model import Fabric
from fabtest.report.graph import LiveState, fabric_svg

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ lab }}: {{ summary }}</title>
<style>
body{font:14px/1.45 sans-serif;margin:2em auto;max-width:70em;color:#1f2933;padding:0 1em}
table{border-collapse:collapse;width:100%}
td,th{padding:.45em .6em;border-bottom:1px solid #e4e7eb;text-align:left;vertical-align:top}
.pass{color:#18794e}.fail{color:#d1242f;font-weight:bold}.inconclusive{color:#ad5700}
.n{color:#52606d;font-size:12px}svg{max-width:100%;height:auto;border:1px solid #e4e7eb;margin-top:1em}
</style>
<h1>{{ lab }}: <span class="{{ worst }}">{{ summary }}</span></h1>
<p>Topology {{ fabric.name }} ({{ fabric.shape }}),
{{ fabric.switches|length }} switches, {{ fabric.servers|length }} servers.
Suites {{ suites|join(", ") }}, {{ seconds }} s.</p>
<table><tr><th>Check<th>Verdict<th>What was seen</tr>
{% for v in verdicts %}<tr><td>{{ v.check }}<td class="{{ v.outcome }}">{{ v.outcome }}<td>{{ v.sentence }}
<div class="n">{% for k, n in v.numbers.items() %}{{ k }} = {{ n }}{{ ", " if not loop.last }}{% endfor %}</div></tr>
{% endfor %}</table>
{{ picture|safe }}
</html>
"""


def verdict_page(
    fabric: Fabric,
    lab: str,
    suites: Sequence[str],
    verdicts: Sequence[Mapping[str, Any]],
    seconds: float,
    state: LiveState,
) -> str:
    """The page. ``verdicts`` as ``Verdict.as_json`` gives them."""
    count = {word: sum(v["outcome"] == word for v in verdicts) for word in ("pass", "fail", "inconclusive")}
    worst = "fail" if count["fail"] else "inconclusive" if count["inconclusive"] else "pass"
    summary = ", ".join(f"{n} {word}" for word, n in count.items() if n) or "nothing checked"
    template = jinja2.Environment(autoescape=True).from_string(_PAGE)
    return template.render(
        fabric=fabric, lab=lab, suites=suites, verdicts=verdicts, seconds=seconds, worst=worst, summary=summary,
        picture=fabric_svg(fabric, state),
    ) + "\n"  # fmt: skip
