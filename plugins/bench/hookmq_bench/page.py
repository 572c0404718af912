"""The HTML report, a single self-contained page. All external text is escaped."""

from html import escape
from math import log10
from typing import Final

from hookmq.config_api import format_duration

from hookmq_bench.control import Point
from hookmq_bench.histogram import Histogram, lower, upper
from hookmq_bench.plot import Line, bars, curve, lines
from hookmq_bench.result import PERCENTILES, Result, headline
from hookmq_bench.text import basis, duration, latencies, payload, where
from hookmq_bench.text import headline as described

BARS: Final = 70
STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2430;--dim:#5d6978;--rule:#dfe4ea;--card:#f6f8fa;
--c0:#2563c9;--c1:#d9740b;--c2:#17875a;--good:#17875a;--soso:#a8690a;--bad:#c02f35}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e4e9ef;--dim:#98a4b3;--rule:#2b333d;--card:#1a2028;
--c0:#6ea3f5;--c1:#f0a04b;--c2:#4fc394;--good:#4fc394;--soso:#e0a942;--bad:#f2757a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 3rem;max-width:86rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;font-variant-numeric:tabular-nums}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2rem 0 .5rem}
p{margin:.25rem 0}.dim{color:var(--dim)}
.badge{font-size:.8rem;font-weight:600;padding:.15rem .6rem;border-radius:1rem;color:var(--bg);margin-left:.6rem;
vertical-align:.2rem;text-transform:uppercase;letter-spacing:.04em}
.valid{background:var(--good)}.lossy{background:var(--soso)}.void{background:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.4rem,1fr));gap:.75rem;margin:1.25rem 0}
.tile{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}
.tile b{display:block;font-size:1.35rem;line-height:1.3}.tile span{color:var(--dim);font-size:.85rem}
.tile.bad b{color:var(--bad)}
ul.told{list-style:none;padding:0;margin:1rem 0}
ul.told li{padding:.45rem .8rem;margin:.35rem 0;border-left:4px solid var(--rule);background:var(--card)}
ul.told li.bad{border-color:var(--bad)}ul.told li.soso{border-color:var(--soso)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(34rem,100%),1fr));gap:1.25rem}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.25rem}
.key{font-weight:400;color:var(--dim);margin-left:.9rem;font-size:.85rem;white-space:nowrap}
.key i{display:inline-block;width:.9rem;height:.2rem;margin-right:.35rem;vertical-align:.22rem}
.key i.c0{background:var(--c0)}.key i.c1{background:var(--c1)}.key i.c2{background:var(--c2)}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:11px}
.grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}
.bar{fill:var(--c0)}.mark{stroke:var(--c1);stroke-width:1;stroke-dasharray:3 3}
svg .label{fill:var(--fg);font-size:11px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;min-width:22rem}th,td{padding:.25rem .9rem .25rem 0;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}tr{border-bottom:1px solid var(--rule)}th{color:var(--dim);font-weight:600}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:0 2rem}
.settings td{text-align:left;white-space:normal;overflow-wrap:anywhere}
"""


def page(result: Result, version: str) -> str:
    """Return the report as a complete HTML page. `version` is HookMQ's version."""
    plan = result.plan
    title = f"{plan.scenario}: {described(plan)}"
    body = [
        f'<h1>{escape(title)}<span class="badge {result.verdict}">{result.verdict}</span></h1>',
        f'<p class="dim">{escape(where(plan))}; {escape(result.started)}; measured {result.seconds:.1f} s'
        + (f" after {format_duration(plan.warm_up)} of warm-up" if plan.warm_up else "")
        + f"; hookmq-bench {escape(version)}</p>",
        _tiles(result),
        _told(result),
        f'<div class="plots">{"".join(_plots(result))}</div>',
        '<div class="pair"><div><h2>Counts</h2>',
        _counts(result),
        "</div><div><h2>Latency</h2>",
        _latencies(result),
        "</div></div><h2>Settings</h2>",
        _settings(result),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>hookmq bench: {escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def _tiles(result: Result) -> str:
    plan, main = result.plan, result.main
    connects = plan.kind.connects
    what = "connects a second" if connects else "messages a second"
    kind = "CONNACK" if connects else "latency"
    tiles = [(f"{headline(result):,.0f}", what, False)]
    if main.count:
        tiles += [
            (duration(main.percentile(percent)), f"{kind} {name}", False)
            for name, percent in PERCENTILES.items()
            if name != "p90"
        ]
        tiles.append((duration(main.largest), f"{kind}, largest", False))
    if plan.kind.connects:
        failed = result.connections.failed if result.connections else 0
        tiles.append((f"{failed:,}", "connects failed", failed > 0))
    if plan.subscribers or result.lost:
        tiles.append((f"{result.lost:,}", "lost", result.lost > 0))
    if result.unacked:
        tiles.append((f"{result.unacked:,}", "unacknowledged", True))
    if plan.subscribers:
        odd = result.duplicates + (0 if plan.shared else result.reordered)
        tiles.append((f"{odd:,}", "duplicated or reordered", odd > 0))
    busiest = max(result.cores, default=0.0)
    tiles.append((f"{busiest:.0%}", "of a core used by the generator", busiest > 0.8))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name, bad in tiles
        )
        + "</div>"
    )


def _told(result: Result) -> str:
    told = [("bad", "Void", text) for text in result.faults]
    told += [("bad", "Failed", text) for text in result.failures]
    told += [("soso", "Warning", text) for text in result.warnings]
    told += [("", "Note", text) for text in result.notes]
    if not told:
        return ""
    rows = "".join(
        f'<li class="{kind}"><b>{name}:</b> {escape(text)}</li>' for kind, name, text in told
    )
    return f'<ul class="told">{rows}</ul>'


def _plots(result: Result) -> list[str]:
    plan, points = result.plan, result.points
    if plan.kind.connects:
        over_time = [
            lines("Connects a second", [_rate("connects", points, "connects")], _count),
            lines("Open connections", [_level("open", points, "connected")], _count),
        ]
    else:
        series = []
        if plan.publishers:
            series.append(_rate("sent", points, "sent"))
        if plan.subscribers:
            series.append(_rate("received", points, "received"))
        elif plan.qos:
            series.append(_rate("acknowledged", points, "acked"))
        over_time = [lines("Messages a second", series, _count, plan.warm_up)]
    over_time.append(
        lines(
            "Latency over time",
            [_level("p50", points, "p50", drop=True), _level("p99", points, "p99", drop=True)],
            _time,
            plan.warm_up,
        )
    )
    main = result.main
    found = latencies(result)
    if len(found) > 1 and not plan.kind.connects:
        found = [(name, one) for name, one in found if name != "CONNACK"] or found
    plots = [
        *over_time,
        bars(
            "Latency histogram",
            _bars(main),
            _time,
            [(name, main.percentile(percent)) for name, percent in PERCENTILES.items()],
        ),
        curve("Latency by percentile", [Line(name, _curve(one)) for name, one in found], _time),
    ]
    if plan.publishers and len(points) > 1:
        plots.append(
            lines("In flight", [_level("outstanding", points, "outstanding")], _count, plan.warm_up)
        )
    return [one for one in plots if one]


def _rate(name: str, points: list[Point], field: str) -> Line:
    found = []
    before = (0.0, 0)
    for point in points:
        value = getattr(point, field)
        if point.at > before[0]:
            found.append((point.at, max(0.0, (value - before[1]) / (point.at - before[0]))))
        before = (point.at, value)
    return Line(name, found)


def _level(name: str, points: list[Point], field: str, drop: bool = False) -> Line:
    found = [(point.at, float(getattr(point, field))) for point in points]
    return Line(name, [one for one in found if one[1]] if drop else found)


def _bars(histogram: Histogram) -> list[tuple[float, float, int]]:
    """Regroup the counts into `BARS` bars of equal width on a logarithmic axis."""
    sparse = histogram.sparse()
    if not sparse:
        return []
    low = max(1.0, float(lower(min(sparse))))
    high = max(low * 1.5, float(upper(max(sparse)) + 1))
    width = (log10(high) - log10(low)) / BARS
    counts = [0] * BARS
    for number, times in sparse.items():
        middle = max(low, (lower(number) + upper(number)) / 2)
        counts[min(BARS - 1, int((log10(middle) - log10(low)) / width))] += times
    edges = [10 ** (log10(low) + width * index) for index in range(BARS + 1)]
    return [(edges[index], edges[index + 1], counts[index]) for index in range(BARS)]


def _curve(histogram: Histogram) -> list[tuple[float, float]]:
    """Return the points of the percentile curve. They get denser towards 100, and end where too few values remain."""
    found = []
    left = 1.0
    while left * histogram.count >= 1 and left > 1e-6:
        found.append((100 * (1 - left), float(histogram.percentile(100 * (1 - left)))))
        left /= 10**0.1
    return found


def _time(value: float) -> str:
    """Format a duration for an axis label."""
    if not value:
        return "0"
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} ns"


def _count(value: float) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _table(rows: list[list[str]], kind: str = "") -> str:
    head, *rest = rows
    cells = "".join(f"<th>{escape(one)}</th>" for one in head)
    lines_ = [f"<tr>{cells}</tr>"] if any(head) else []
    lines_ += ["<tr>" + "".join(f"<td>{escape(one)}</td>" for one in row) + "</tr>" for row in rest]
    return f'<div class="scroll"><table class="{kind}">{"".join(lines_)}</table></div>'


def _counts(result: Result) -> str:
    plan, rates, counts = result.plan, result.rates, result.connections
    rows = [["", "total", "a second"]]
    if counts is not None:
        rows.append(["connected", f"{counts.opened:,}", f"{rates['connects']:,.0f}"])
        rows.append(["failed", f"{counts.failed:,}", ""])
        if not plan.target.clean_start:
            rows.append(["found their session", f"{counts.resumed:,}", ""])
        if counts.wills_due:
            rows.append(["wills due", f"{counts.wills_due:,}", ""])
            rows.append(["wills received", f"{counts.wills_came:,}", ""])
        rows += [
            [f"storm {number}: all connected again after", duration(took), ""]
            for number, took in enumerate(counts.storms[:50], 1)
        ]
        return _table(rows)
    if plan.publishers:
        rows.append(["sent", f"{result.sent:,}", f"{rates['sent']:,.0f}"])
        if plan.qos:
            rows.append(["acknowledged", f"{result.acked:,}", f"{rates['acked']:,.0f}"])
            rows.append(["unacknowledged", f"{result.unacked:,}", ""])
    if plan.subscribers:
        rows.append(["received", f"{result.received:,}", f"{rates['received']:,.0f}"])
        rows.append(["lost", f"{result.lost:,}", ""])
        rows.append(["duplicated", f"{result.duplicates:,}", ""])
        if not plan.shared:
            rows.append(["reordered", f"{result.reordered:,}", ""])
    return _table(rows)


def _latencies(result: Result) -> str:
    found = latencies(result)
    if not found:
        return "<p>No latency was measured.</p>"
    rows = [["", *PERCENTILES, "max", "mean"]]
    for name, one in found:
        values = [one.percentile(percent) for percent in PERCENTILES.values()]
        rows.append([name, *(duration(value) for value in (*values, one.largest, one.mean))])
    return _table(rows) + (
        f'<p class="dim">{escape(basis(result.plan))}</p>' if result.main.count else ""
    )


def _settings(result: Result) -> str:
    plan = result.plan
    rows = [["", ""], ["broker", where(plan)]]
    if plan.kind.connects:
        rows.append(["clients", f"{plan.clients:,}"])
    else:
        rows.append(["publishers, subscribers", f"{plan.publishers:,}, {plan.subscribers:,}"])
        rows.append(["QoS", str(plan.qos)])
        if plan.publishers:
            rows.append(["payload", payload(plan)])
            rows.append(
                [
                    "rate",
                    f"{plan.rate:,g} a second" if plan.rate else "as fast as the window permits",
                ]
            )
            rows.append(["window", str(plan.window or "none")])
        rows.append(["topic", plan.topic])
    rows.append(["sessions", "clean" if plan.target.clean_start else "durable"])
    cores = ", ".join(f"{share:.0%}" for share in result.cores)
    rows.append(["generator", f"processes: {plan.processes}; cores used: {cores}"])
    if result.lag.count:
        rows.append(
            [
                "generator late",
                f"p50 {duration(result.lag.percentile(50))}, p99 {duration(result.lag.percentile(99))}",
            ]
        )
    return _table(rows, "settings")
