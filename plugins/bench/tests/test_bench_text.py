"""Test the progress line, on a terminal and in a file."""

import io

import pytest
from hookmq_bench.control import Point
from hookmq_bench.text import SELDOM, Progress, fit, headline, where
from unwired import vary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def point(at: float, count: int) -> Point:
    return Point(at, count, count, count, count, 7, 3, 2, 1_000, 2_000_000, 0)


def test_a_terminal_has_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(vary(), out)
    progress("running", point(1, 100))
    progress("running", point(2, 350))
    progress.end()
    assert out.getvalue().count("\n") == 0
    last = out.getvalue().split("\r")[-2]
    assert (
        last
        == "[#---------] running 2/11 s  sent 250/s  received 250/s  missing 2  p99 2.00 ms\x1b[K"
    )
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_terminal_that_cannot_go_back_is_told_like_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    progress = Progress(vary(), out, lambda: 0.0)
    progress("running", point(1, 100))
    progress.end()
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("changes", "phase", "at", "full"),
    [
        ({}, "connecting", point(0, 0), 10),
        ({"publishers": 7, "subscribers": 7}, "connecting", point(0, 0), 5),
        ({}, "running", point(0, 0), 0),
        ({}, "warming up", point(5.6, 0), 5),
        ({}, "running", point(99, 0), 10),
        ({}, "draining", point(1, 0), 10),
        ({"count": 1000, "duration": 0.0}, "running", point(99, 700), 7),
        ({"count": 1000}, "running", point(9, 700), 8),
        ({"scenario": "churn", "publishers": 0, "subscribers": 0, "count": 1000, "duration": 0.0},
         "running", point(9, 300), 3),
        ({"scenario": "sub", "publishers": 0, "duration": 0.0}, "running", point(9, 300), 0),
    ],
)  # fmt: skip
def test_the_bar_tells_how_much_is_over(
    changes: dict[str, object], phase: str, at: Point, full: int
) -> None:
    assert Progress(vary(4, None, **changes), io.StringIO()).bar(phase, at) == (
        f"[{'#' * full}{'-' * (10 - full)}]"
    )


def test_a_narrow_terminal_is_spared_what_it_misses_least() -> None:
    line = (
        "[#---------] running 2/11 s  sent 9/s  received 9/s  in flight 3  missing 2  p99 2.00 ms"
    )
    assert fit(line, 100) == line
    assert fit(line, 80) == line.replace("in flight 3  ", "")
    assert fit(line, 60) == "[#---------] running 2/11 s  received 9/s  p99 2.00 ms"
    assert fit(line, 20) == line[:20]
    none = line.replace("missing 2", "missing 0")
    assert fit(none, 70) == "[#---------] running 2/11 s  sent 9/s  received 9/s  p99 2.00 ms"


def test_elsewhere_a_line_now_and_then() -> None:
    out, now = io.StringIO(), 0.0
    progress = Progress(vary(), out, lambda: now)
    for step in range(101):
        now = step * SELDOM / 10
        progress("running", point(now, step * 50))
    progress.end()
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert "\x1b" not in out.getvalue()
    assert all("received 100/s" in line for line in lines)


def test_phases_and_scenarios() -> None:
    plan = vary()
    assert Progress(plan, io.StringIO()).line("connecting", None, point(0, 0)) == "connecting 7/4"
    churn = vary(scenario="churn", publishers=0, subscribers=0, clients=9, storm=2.0, abrupt=True)
    line = Progress(churn, io.StringIO()).line("running", point(1, 10), point(2, 30))
    assert "30 connects  20/s  7 open  2 failed" in line
    assert headline(churn) == "9 clients, all at once every 2s, without DISCONNECT"
    pub = vary(5, {"tls": True, "websocket": True}, scenario="pub", subscribers=0, qos=1, rate=5.0)
    assert "acked 20/s" in Progress(pub, io.StringIO()).line("running", point(1, 10), point(2, 30))
    assert headline(pub) == "2 publishers, QoS 1, 30 bytes, 5 a second"
    assert where(pub) == "wss://127.0.0.1:1883/mqtt, MQTT 5"
    kept = vary(
        4, {"clean_start": False}, retain=True, shared=True, subscribers=1, scenario="fanin"
    )
    assert headline(kept).endswith("retained, shared subscription, durable sessions")
