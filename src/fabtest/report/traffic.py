"""A run of traffic as one HTML page that stands alone: what was asked, what came of it, and plots. Pure.

Plots are SVG by matplotlib: rate over time per rail, the distribution of message completion times, and the load of
each leaf's uplinks against what a uniform hash would do.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np

from fabtest.workload.results import RunResult
from fabtest.workload.units import format_rate, format_size

#: Leaves shown in the load plot; the rest are in the JSON.
MOST_LEAVES = 16
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ r.workload }} on {{ r.lab }}</title>
<style>
body{font:14px/1.45 sans-serif;margin:2em auto;max-width:70em;color:#1f2933;padding:0 1em}
table{border-collapse:collapse;width:100%;margin-bottom:1em}
td,th{padding:.35em .6em;border-bottom:1px solid #e4e7eb;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#18794e}.bad{color:#d1242f;font-weight:bold}svg{max-width:100%;height:auto}
.plots{display:grid;grid-template-columns:1fr;gap:1em}
</style>
<h1>{{ r.workload }} on {{ r.lab }}:
<span class="{{ 'ok' if r.ok else 'bad' }}">{{ "all arrived" if r.ok else "not all arrived" }}</span></h1>
<p>{{ "%.3f"|format(r.seconds) }} s, {{ r.failed_messages }} failed messages, {{ r.retransmits }} packets sent again,
{{ r.lost }} lost, longest outage of a queue pair {{ "%.1f"|format(r.outage_ms) }} ms.</p>
{% if r.cut %}<p class="bad">The workload's time limit ended the run before it was done.</p>{% endif %}
{% for f in r.failures %}<p class="bad">{{ f }}</p>{% endfor %}
<table><tr><th>Job<th class="n">Ranks<th class="n">Messages<th class="n">Failed<th class="n">Data<th class="n">Time
<th class="n">algbw<th class="n">busbw<th class="n">Goodput<th class="n">p50<th class="n">p99
<th class="n">Lost to slowest</tr>
{% for j in r.jobs %}<tr><td>{{ j.pattern }}<td class="n">{{ j.ranks }}<td class="n">{{ j.messages }}
<td class="n">{{ j.failed_messages }}<td class="n">{{ size(j.bytes) }}<td class="n">{{ "%.3f"|format(j.seconds) }} s
<td class="n">{{ rate(j.algbw) if j.algbw else "–" }}<td class="n">{{ rate(j.busbw) if j.busbw else "–" }}
<td class="n">{{ rate(j.goodput) }}<td class="n">{{ "%.2f ms"|format(j.fct.p50) if j.fct else "–" }}
<td class="n">{{ "%.2f ms"|format(j.fct.p99) if j.fct else "–" }}
<td class="n">{{ "%.1f ms"|format(j.lost_to_slowest_ms) }}</tr>{% endfor %}</table>
{% for sentence in sentences %}<p>{{ sentence }}</p>{% endfor %}
<div class="plots">{% for plot in plots %}{{ plot|safe }}{% endfor %}</div>
</html>
"""


def traffic_page(result: RunResult, uplinks: dict[str, list[str]], sentences: Sequence[str] = ()) -> str:
    """The page. ``uplinks``: leaf -> its ports towards spines."""
    plots = [p for p in (rate_plot(result), completion_plot(result), load_plot(result, uplinks)) if p]
    template = jinja2.Environment(autoescape=True).from_string(_PAGE)
    return template.render(r=result, plots=plots, sentences=sentences, size=format_size, rate=format_rate) + "\n"


def _figure(width: float = 9.0, height: float = 3.2) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    # The same page for the same numbers: no random ids in the SVG.
    matplotlib.rcParams["svg.hashsalt"] = "fabtest"
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def rate_plot(result: RunResult) -> str:
    """Received bit/s over time, a line per rail. "" if nothing was received."""
    if not result.timeline:
        return ""
    rails: dict[int, dict[float, float]] = defaultdict(dict)
    for seconds, rail, rate in result.timeline:
        rails[rail][seconds] = rate
    end = max(s for s, _, _ in result.timeline)
    grid = np.arange(0, end + result.bin_seconds / 2, result.bin_seconds)
    figure = _figure()
    axes = figure.subplots()
    for rail, points in sorted(rails.items()):
        values = [points.get(round(float(t), 6), 0.0) / 1e9 for t in grid]
        axes.plot(grid, values, linewidth=1, drawstyle="steps-post", label=f"rail {rail}" if rail else "all NICs")
    axes.set(title="Received, per rail", xlabel="seconds", ylabel="Gbit/s", ylim=(0, None))
    axes.legend(fontsize=7, ncols=4)
    return _svg(figure)


def completion_plot(result: RunResult) -> str:
    """Distribution of message completion times per job. "" if none completed."""
    if not any(result.fct_ns.values()):
        return ""
    figure = _figure()
    axes = figure.subplots()
    for job, values in sorted(result.fct_ns.items()):
        if values:
            data = np.sort(np.asarray(values, float)) / 1e6
            axes.plot(data, np.arange(1, len(data) + 1) / len(data), linewidth=1.2, label=result.jobs[job].pattern)
    axes.set(title="Message completion time", xlabel="ms", ylabel="share of messages", xscale="log", ylim=(0, 1))
    axes.legend(fontsize=7)
    return _svg(figure)


def load_plot(result: RunResult, uplinks: dict[str, list[str]]) -> str:
    """What the uplinks of each leaf carried, as multiples of their mean; the line is what a uniform hash gives the
    fullest of them, where the flows are known. "" if the fabric has no uplinks or they carried nothing."""
    sent = {(p.switch, p.port): p.bytes for p in result.ports}
    rows = [(leaf, [sent.get((leaf, port), 0) for port in ports]) for leaf, ports in uplinks.items() if len(ports) > 1]
    # A leaf whose uplinks carry routing protocols and nothing else has no load to speak of.
    most = max((sum(loads) for _, loads in rows), default=0)
    rows = [(leaf, loads) for leaf, loads in rows if sum(loads) > most / 100][:MOST_LEAVES]
    if not rows:
        return ""
    figure = _figure(height=3.4)
    axes = figure.subplots()
    expected = {c["switch"]: c["expected_max"] for c in result.ecmp}
    for n, (leaf, loads) in enumerate(rows):
        mean = sum(loads) / len(loads)
        axes.scatter([n] * len(loads), [load / mean for load in loads], s=14, color="#2563eb", alpha=0.7)
        if leaf in expected:
            axes.hlines(expected[leaf], n - 0.3, n + 0.3, colors="#d97706", linewidth=1.5)
    axes.axhline(1.0, color="#9aa5b1", linewidth=0.8)
    axes.set(
        title="Load of each leaf's uplinks (orange: fullest, as a uniform hash would have it)", ylabel="times the mean"
    )
    axes.set_xticks(range(len(rows)), [leaf for leaf, _ in rows], rotation=45, fontsize=7)
    return _svg(figure)
