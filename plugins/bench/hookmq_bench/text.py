"""Text output for a run: the progress line, and the table at the end."""

import os
import time
from collections.abc import Callable
from typing import Final, TextIO

from hookmq.config_api import format_duration, format_size

from hookmq_bench.control import Point
from hookmq_bench.histogram import Histogram
from hookmq_bench.plan import NAMES, SECOND, Plan
from hookmq_bench.result import PERCENTILES, Result

SELDOM: Final = 5.0
"""Seconds between two progress lines if the output is not a terminal."""
CELLS: Final = 10
"""The width of the progress bar in characters."""
SPARED: Final = "in flight ", "missing 0", "sent ", "missing "
"""The parts of the progress line to omit on a narrow terminal, least important first."""


def duration(nanoseconds: float) -> str:
    """Format a duration with three significant digits."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= factor:
            value = nanoseconds / factor
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{nanoseconds:.0f} ns"


def headline(plan: Plan) -> str:
    """Describe the load in one line."""
    parts = []
    if plan.kind.connects:
        parts.append(f"{plan.clients:,} clients")
        if plan.storm:
            parts.append(f"all at once every {format_duration(plan.storm)}")
        elif plan.connect_rate:
            parts.append(f"{plan.connect_rate:,g} connects a second")
        if plan.abrupt:
            parts.append("without DISCONNECT")
    else:
        if plan.publishers:
            parts.append(_several(plan.publishers, "publisher"))
        if plan.subscribers:
            parts.append(_several(plan.subscribers, "subscriber"))
        parts.append(f"QoS {plan.qos}")
        if plan.publishers:
            parts.append(payload(plan))
            parts.append(f"{plan.rate:,g} a second" if plan.rate else f"window {plan.window}")
        if plan.retain:
            parts.append("retained")
        if plan.shared:
            parts.append("shared subscription")
    if not plan.target.clean_start:
        parts.append("durable sessions")
    return ", ".join(parts)


def payload(plan: Plan) -> str:
    """Describe the payload size."""
    found = format_size(plan.size)
    return f"{found} bytes" if found.isdigit() else found


def where(plan: Plan) -> str:
    """Return the broker's URL and the MQTT version."""
    target = plan.target
    scheme = {
        (False, False): "mqtt",
        (True, False): "mqtts",
        (False, True): "ws",
        (True, True): "wss",
    }
    path = target.path if target.websocket else ""
    return (
        f"{scheme[target.tls, target.websocket]}://{target.address}{path}, {NAMES[target.version]}"
    )


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class Progress:
    """Shows a run's progress. On a terminal, it keeps updating one line. Otherwise, it prints a new line every few
    seconds.
    """

    def __init__(
        self, plan: Plan, out: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._out = out
        self._clock = clock
        # Treat a terminal that cannot rewrite a line like a file.
        self._live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._next = clock() + SELDOM
        self._last: Point | None = None
        self._drawn = False

    def __call__(self, phase: str, point: Point) -> None:
        """Show `point`, the run's state in the current phase."""
        last, self._last = self._last, point
        if not self._live:
            if self._clock() < self._next:
                self._last = last or point
                return
            self._next = self._clock() + SELDOM
        text = self.line(phase, last, point)
        if self._live:
            text = fit(f"{self.bar(phase, point)} {text}", self._width() - 1)
        self._out.write(f"\r{text}\x1b[K" if self._live else f"{text}\n")
        self._out.flush()
        self._drawn = self._live

    def _width(self) -> int:
        """Return the terminal's current width in columns, or 80 if unknown."""
        try:
            return os.get_terminal_size(self._out.fileno()).columns or 80
        except OSError:  # also raised if `out` has no descriptor
            return 80

    def bar(self, phase: str, point: Point) -> str:
        """Draw how much of the phase is complete. While running, the bar follows the time or the count, depending on
        which will end the run first.
        """
        plan = self._plan
        if phase == "connecting":
            done = point.connected / max(1, plan.publishers + plan.subscribers + plan.clients)
        elif phase == "draining":
            done = 1.0
        else:
            sent = point.sent if plan.publishers else point.received
            counted = point.connects if plan.kind.connects else sent
            whole = self._whole()
            done = max(
                counted / plan.count if plan.count else 0.0, point.at / whole if whole else 0.0
            )
        full = int(CELLS * min(1.0, done))
        return f"[{'#' * full}{'-' * (CELLS - full)}]"

    def _whole(self) -> float:
        """Return how many seconds the run will last, or 0 if only a count or Ctrl-C ends it."""
        plan = self._plan
        if plan.kind.connects or not plan.duration:
            return plan.duration
        return plan.warm_up + plan.duration

    def line(self, phase: str, last: Point | None, point: Point) -> str:
        """Compose one progress line."""
        plan = self._plan
        since = last or point
        passed = point.at - since.at

        def rate(name: str) -> str:
            gone = getattr(point, name) - getattr(since, name)
            return f"{gone / passed if passed > 0 else 0:,.0f}/s"

        whole = self._whole()
        at = f"{min(point.at, whole):.0f}/{whole:.0f} s" if whole else f"{point.at:.0f} s"
        if phase == "connecting":
            total = plan.publishers + plan.subscribers + plan.clients
            return f"connecting {point.connected:,}/{total:,}"
        if plan.kind.connects:
            parts = [f"{point.connects:,} connects", rate("connects"), f"{point.connected:,} open"]
            if point.missing:
                parts.append(f"{point.missing:,} failed")
        else:
            parts = []
            if plan.publishers:
                parts.append(f"sent {rate('sent')}")
            if plan.subscribers:
                parts.append(f"received {rate('received')}")
            elif plan.qos:
                parts.append(f"acked {rate('acked')}")
            if plan.publishers:
                parts.append(f"in flight {point.outstanding:,}")
            parts.append(f"missing {point.missing:,}" if plan.subscribers else "")
        if point.p99:
            parts.append(f"p99 {duration(point.p99)}")
        return f"{phase} {at}  " + "  ".join(part for part in parts if part)

    def end(self) -> None:
        """Erase the progress line."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()


def fit(text: str, width: int) -> str:
    """Shorten `text` to `width` columns. A longer line would wrap, and its first part could no longer be erased."""
    parts = text.split("  ")
    for spared in SPARED:
        if len("  ".join(parts)) > width:
            parts = [part for part in parts if not part.startswith(spared)]
    return "  ".join(parts)[:width]


def table(result: Result) -> str:
    """Format the result as a text table."""
    plan = result.plan
    lines = [f"hookmq bench {plan.scenario}: {headline(plan)}", where(plan)]
    measured = f"measured {result.seconds:.1f} s"
    if plan.warm_up:
        measured += f" after {format_duration(plan.warm_up)} of warm-up; totals include both"
    lines += [measured, ""]
    if plan.kind.connects:
        lines += _connects(result)
    else:
        lines += _messages(result)
    lines += ["", *_latencies(result), ""]
    cores = ", ".join(f"{share:.0%}" for share in result.cores)
    lines.append(f"generator   {cores} of a core{'' if len(result.cores) == 1 else ' each'}")
    for name, found in (
        ("warning", result.warnings), ("note", result.notes), ("VOID", result.faults),
        ("FAILED", result.failures),
    ):  # fmt: skip
        lines += [f"{name:<11} {text}" for text in found]
    lines.append(f"verdict     {result.verdict}")
    return "\n".join(lines) + "\n"


def _row(name: str, total: int, rate: float | None = None) -> str:
    return f"{name:<14}{total:>14,}" + (f"{rate:>14,.0f}" if rate is not None else "")


def _messages(result: Result) -> list[str]:
    plan, rates = result.plan, result.rates
    lines = [f"{'':<14}{'total':>14}{'per second':>14}"]
    if plan.publishers:
        lines.append(_row("sent", result.sent, rates["sent"]))
        if plan.qos:
            lines.append(_row("acked", result.acked, rates["acked"]))
    if plan.subscribers:
        lines.append(_row("received", result.received, rates["received"]))
        lines.append(_row("lost", result.lost))
    if plan.publishers and plan.qos:
        lines.append(_row("unacked", result.unacked))
    if plan.subscribers:
        lines.append(_row("duplicated", result.duplicates))
        if not plan.shared:
            lines.append(_row("reordered", result.reordered))
    return lines


def _connects(result: Result) -> list[str]:
    counts = result.connections
    assert counts is not None
    lines = [
        f"{'':<14}{'total':>14}{'per second':>14}",
        _row("connected", counts.opened, result.rates["connects"]),
        _row("failed", counts.failed),
    ]
    if not result.plan.target.clean_start:
        lines.append(_row("found session", counts.resumed))
    if counts.wills_due:
        lines += [_row("wills due", counts.wills_due), _row("wills received", counts.wills_came)]
    if counts.storms:
        worst = max(counts.storms)
        lines.append(
            f"{len(counts.storms)} storms of {result.plan.clients:,}: all connected again within {worst / SECOND:.2f} s"
        )
    return lines


def latencies(result: Result) -> list[tuple[str, Histogram]]:
    """Return the non-empty histograms with their names."""
    plan = result.plan
    acknowledgement = {1: "PUBACK", 2: "PUBCOMP"}.get(plan.qos, "")
    found = [
        ("end to end", result.latency),
        (acknowledgement, result.acknowledged),
        ("CONNACK", result.connected),
    ]
    return [(name, one) for name, one in found if one.count]


def basis(plan: Plan) -> str:
    """Describe when latency measurement starts."""
    if plan.kind.connects:
        return "from opening the connection to CONNACK, TLS included"
    if plan.rate:
        return "from when a message was due, not from when it was sent: coordinated omission is corrected"
    return (
        "from when a message was sent; there is no fixed rate, so a broker that stops gets fewer messages:"
        " to compare latencies, use --rate"
    )


def _latencies(result: Result) -> list[str]:
    found = latencies(result)
    if not found:
        return ["no latency was measured"]
    lines = [f"{'latency':<14}" + "".join(f"{name:>10}" for name in (*PERCENTILES, "max", "mean"))]
    for name, one in found:
        values = [one.percentile(percent) for percent in PERCENTILES.values()]
        cells = "".join(f"{duration(value):>10}" for value in (*values, one.largest, one.mean))
        lines.append(f"{name:<14}{cells}")
    if result.main.count:
        lines.append(basis(result.plan))
    return lines
