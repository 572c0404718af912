"""`python -m bench.render`: write the tables and plots in docs/explanation/performance.md from bench/results.

The page is written by hand, except for marked places. This module fills those places and draws the plots.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import sys
import tomllib
from typing import Any

from . import peers, report, svg

PAGE = peers.HERE.parent / "docs" / "explanation" / "performance.md"
PLOTS = "performance"
"""The folder for plots, next to the page."""
RESULTS = peers.HERE / "results"
NAMES = {"hookmq-pure": "HookMQ pure", "hookmq-compiled": "HookMQ compiled", "hookmq": "HookMQ"}


def named(broker: str) -> str:
    """Return the name that the page uses for a broker."""
    return NAMES.get(broker, broker)


def grid(headings: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table. All columns except the first contain numbers."""
    lines = [headings, ["---", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(value: float) -> str:
    """Format a value with three significant digits."""
    digits = max(0, 2 - len(str(int(value))) + 1)
    return f"{value:,.{digits}f}"


def conditions(document: dict[str, Any]) -> str:
    """Describe the machine, the date and the settings."""
    host, options = document["machine"], document["options"]
    versions = "; ".join(f"{named(name)} {text}" for name, text in document["versions"].items())
    left = "; ".join(f"{named(name)}: {why}" for name, why in document["left_out"].items())
    found = [row["median"] for row in document["rows"] if "waited" in row["median"]]
    disturbed = sum(median["waited"] > report.WAITED for median in found)
    return (
        f"{document['started'][:10]}, {host['cpu']}, {host['cores']} cores, {host['memory_gib']:g} GiB, Linux"
        f" {host['kernel']}, load average before {host['load_average'][0]:.2f}; medians (lowest-highest) of"
        f" {options['runs']} x {options['seconds']:g} s. {versions}."
        + (f" Left out: {left}." if left else "")
        + (
            f" **In {disturbed} of {len(found)} rows, other work used a core for more than a tenth of the time. Ignore"
            " those figures.**"
            if disturbed
            else ""
        )
    )


def _cells(document: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        found.setdefault(row["scenario"], {})[row["broker"]] = row
    return found


def _order(document: dict[str, Any]) -> list[str]:
    return [name for name in document["versions"] if name != "mosquitto-disk"]


def costs(document: dict[str, Any]) -> str:
    """Return the table of CPU time per message for all brokers, with HookMQ's goals."""
    brokers = _order(document)
    lines = []
    for cells in _cells(document).values():
        load = next(iter(cells.values()))["load"]
        line = [load["title"]]
        line += [_cost(cells.get(name), load["mode"]) for name in brokers]
        for key in ("cost_ratio", "rival_ratio"):
            ours = [row[key] for row in cells.values() if row["build"] and row[key]]
            line.append(" / ".join(f"{ratio:.1f}" for ratio in ours))
        line.append("; ".join(row["goal"] for row in cells.values() if row["goal"]))
        lines.append(line)
        if "mosquitto-disk" in cells:
            shown = _cost(cells["mosquitto-disk"], load["mode"])
            disk = [f"{load['title']}, mosquitto with `persistence true`", shown]
            lines.append(disk + [""] * (len(brokers) + 2))
    return grid(["", *map(named, brokers), "times mosquitto", "times nats", "goal"], lines)


def _cost(row: dict[str, Any] | None, mode: str) -> str:
    if row is None or row["left_out"]:
        return "-"
    if not row["median"]:
        return "void"
    unit = " KiB" if mode == "idle" else ""
    text = figure(row["median"]["cost"]) + unit
    if row["least"]["cost"] != row["most"]["cost"]:
        text += f" ({figure(row['least']['cost'])}-{figure(row['most']['cost'])})"
    return text + ("*" if row["void"] else "")


def rates(document: dict[str, Any]) -> str:
    """Return the table of messages a second, with the generator's share of its core if the generator was the limit."""
    brokers = _order(document)
    lines = []
    for cells in _cells(document).values():
        load = next(iter(cells.values()))["load"]
        if load["mode"] in ("open", "idle"):
            continue
        line = [load["title"]]
        for name in brokers:
            median = (cells.get(name) or {}).get("median")
            text = report.number(median["rate"]) if median else "-"
            if median and median["generator"] > report.BUSY:
                text = f"≥ {text} (gen. {median['generator']:.0%})"
            line.append(text)
        lines.append(line)
    return grid(["", *map(named, brokers)], lines)


def latencies(document: dict[str, Any]) -> str:
    """Return the table of p50, p99 and p99.9 latencies at fixed rates."""
    brokers = _order(document)
    lines = []
    for cells in _cells(document).values():
        load = next(iter(cells.values()))["load"]
        if load["mode"] != "open":
            continue
        line = [load["title"]]
        for name in brokers:
            median = (cells.get(name) or {}).get("median")
            parts = [median[key] for key in ("p50", "p99", "p99_9")] if median else []
            line.append(" / ".join(f"{part:,.0f}" for part in parts) or "void")
        lines.append(line)
    return grid(["µs, p50 / p99 / p99.9", *map(named, brokers)], lines)


def void(document: dict[str, Any]) -> str:
    """Return the list of void runs and omitted brokers."""
    lines = []
    for row in document["rows"]:
        why = row["left_out"] and f"left out: {row['left_out']}"
        if row["void"]:
            reasons = "; ".join(dict.fromkeys(row["void"]))
            why = f"{len(row['void'])} of {len(row['runs'])} runs void: {reasons}"
        if why:
            lines.append(f"- {row['load']['title']}, {named(row['broker'])}: {why}")
    return "\n".join(lines) or "None."


def quoted(table: dict[str, Any]) -> str:
    """Return the table of brokers that were measured once, under other conditions."""
    lines = []
    for broker in table["broker"]:
        pairs = zip(broker["rate"], broker["cost"], strict=True)
        cells = [f"{rate}k / {cost:g}" for rate, cost in pairs]
        lines.append([broker["name"], *cells, *["-"] * (len(table["columns"]) - len(cells))])
    text = grid(["a second / CPU µs", *table["columns"]], lines)
    return f"Measured {table['measured']}. {table['loads']}.\n\n{text}"


def curves(document: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the section on growth, and its plots by file name."""
    parts, plots = [], {}
    order = ("mosquitto", *NAMES.values())
    for curve in document["curves"]:
        lines: dict[str, list[svg.Point]] = {}
        notes = []
        for point in curve["points"]:
            if "cost" in point:
                made = svg.Point(point["value"], point["cost"], point["least"], point["most"])
                lines.setdefault(named(point["broker"]), []).append(made)
            elif "left_out" in point:
                notes.append(f"The value {point['value']:,} was not measured: {point['left_out']}.")
                notes += [
                    f"Without sockets, {named(broker)} needs {held['kib_each']:.2f} KiB for each of {point['value']:,}"
                    f" connections, {held['rss_mib']:,.0f} MiB in total."
                    for broker, held in point.get("held", {}).items()
                ]
            else:
                notes.append(
                    f"{point['value']:,}, {named(point['broker'])}: void, {point['void'][0]}."
                )
        plots[f"{curve['name']}.svg"] = svg.chart(
            curve["title"], curve["x"], "CPU µs each", lines, order
        )
        held = _memory(curve)
        parts.append(
            f"### {curve['title']}\n\n![{curve['title']}]({PLOTS}/{curve['name']}.svg)\n\nClaim: {curve['claim']}."
            + (f" {' '.join(notes)}" if notes else "")
            + (f"\n\n{held}" if held else "")
        )
    return "\n\n".join(parts), plots


def _memory(curve: dict[str, Any]) -> str:
    """Describe the broker's resident memory at a curve's largest x value, or return '' if the curve does not measure
    memory.
    """
    if curve["name"] not in ("subscriptions", "connections", "retained"):
        return ""
    measured = [point for point in curve["points"] if "kib_each" in point and "cost" in point]
    if not measured:
        return ""
    most = max(point["value"] for point in measured)
    told = [
        f"{named(point['broker'])} {point['rss_mib']:,.0f} MiB, {point['kib_each']:.2f} KiB each"
        for point in measured
        if point["value"] == most
    ]
    return f"Resident memory with {most:,}: {'; '.join(told)}."


def spark(document: dict[str, Any]) -> str:
    """Return the tables from `bench.spark_sink`: publishing into a stream, publishing with readers, and Spark."""
    rates = {
        name: [statistics.median(run[place] for run in runs) for place in (0, 1)]
        for name, runs in document["rates"].items()
    }
    alone = rates["storage alone"][0]
    publishing = grid(
        ["QoS 1, synced", "messages/s", "CPU µs each", "ratio to the first row"],
        [
            [name, f"{rate:,.0f}", f"{used:.1f}", f"{rate / alone:.2f}"]
            for name, (rate, used) in rates.items()
        ],
    )
    publishing += "\n\nGoal: at least 0.8 times the rate of the storage plugin alone."
    reading = grid(
        ["readers of the whole stream", "p99 of PUBLISH to PUBACK, ms (each run)"],
        [
            [number, ", ".join(f"{late * 1e3:.1f}" for late in runs)]
            for number, runs in document["p99"].items()
        ],
    )
    got = statistics.median(document["records_per_second"])
    reading += f"\n\nTogether, the two readers read {got:,.0f} records/s."
    found = document["spark"]["rows_per_second"]
    [rows] = found["rows"]
    medians = {name: statistics.median(found[name]) for name in ("log", "files")}
    tables = grid(
        [f"{rows:,.0f} rows into Parquet", "rows/s", "lowest-highest"],
        [
            [label, f"{medians[name]:,.0f}", f"{min(found[name]):,.0f}-{max(found[name]):,.0f}"]
            for name, label in (
                ("log", '`format("mqtt")`, from the log'),
                ("files", "Spark's own source of Parquet files"),
            )
        ],
    )
    ratio = medians["log"] / medians["files"]
    tables += f"\n\nThat is {ratio:.2f} times the rate of Spark's own source. "
    tables += "The goals are 500,000 rows/s and a ratio of 1.0."
    late = grid(
        ["PUBLISH to table, 5,000 msg/s", "p50 ms", "p99 ms", "batches"],
        [
            [name, f"{one['p50']:,.0f}", f"{one['p99']:,.0f}", str(one["batches"])]
            for name, one in document["spark"]["latency"].items()
        ],
    )
    return "\n\n".join((publishing, reading, tables, late))


def fill(page: str, parts: dict[str, str]) -> str:
    """Fill the page's marked places with `parts`. Raises ValueError if a place is missing."""
    for name, text in parts.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = place.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{PAGE.name} has no place <!-- {name} -->")
    return page


def render(page: str) -> tuple[str, dict[str, str]]:
    """Return the page with its places filled from the results, and its plots."""
    document = json.loads((RESULTS / "peers.json").read_text())
    section, plots = curves(json.loads((RESULTS / "curves.json").read_text()))
    parts = {
        "conditions": conditions(document),
        "costs": costs(document),
        "rates": rates(document),
        "latencies": latencies(document),
        "void": void(document),
        "quoted": quoted(tomllib.loads((peers.HERE / "quoted.toml").read_text())),
        "spark": spark(json.loads((RESULTS / "spark_sink.json").read_text())),
        "curves": section,
    }
    return fill(page, parts), plots


def main() -> int:
    """Write the page and the plots to disk."""
    argparse.ArgumentParser(prog="python -m bench.render", description=__doc__).parse_args()
    page, plots = render(PAGE.read_text())
    PAGE.write_text(page)
    folder = PAGE.parent / PLOTS
    folder.mkdir(exist_ok=True)
    for name, text in plots.items():
        (folder / name).write_text(text)
    written = [PAGE, *(pathlib.Path(folder, name) for name in plots)]
    print("\n".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
