"""Test the pure functions of `hookmq top`: figures, the table, keys, and screen sizes."""

from typing import Any

import pytest
from hookmq_admin.snapshot import Snapshot, commit_quantile, drops, rates
from hookmq_admin.terminal import fit, split_keys, width_of
from hookmq_admin.top_view import COLUMNS, View, duration, octets, ordered, render

NAMES = (
    "messages_received", "messages_delivered", "bytes_received", "bytes_sent", "connections_accepted",
    "connections_refused", "dropped",
)  # fmt: skip


def client(client_id: str, **values: Any) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(COLUMNS, 0) | {
        "client_id": client_id, "username": None, "connected": True, "listener": "tcp", "address": "192.0.2.1",
    }  # fmt: skip
    return plain | values


def snapshot(at: float, *clients: dict[str, Any], started: float = 100.0, **given: Any) -> Snapshot:
    counters = {f"{name}_total": 0.0 for name in NAMES[:-1]} | given.pop("counters", {})
    overview = {
        "version": "9.9", "time": at, "started_at": started, "uptime": at - started, "connections": 3, "sessions": 1234,
        "subscriptions": 5, "retained_messages": 6, "queue_bytes": 1_500_000, "rates": dict.fromkeys(NAMES, 7.0),
        "dropped": {}, "loop_lag": 0.0012,
    }  # fmt: skip
    return Snapshot(overview | given, counters, clients, more=given.pop("more", False))


def test_rates_are_the_changes_between_two_snapshots_of_one_run() -> None:
    first = snapshot(1000, counters={"messages_received_total": 10.0})
    second = snapshot(1004, counters={"messages_received_total": 50.0})
    assert rates(None, second)["messages_received"] == 7.0
    assert rates(first, second)["messages_received"] == 10.0
    assert rates(first, snapshot(1004, started=1001.0))["messages_received"] == 7.0
    assert rates(second, second)["messages_received"] == 7.0


def test_drops_are_sorted_by_rate_and_empty_reasons_are_left_out() -> None:
    first = snapshot(1000, dropped={"out:queue_full": 5.0, "in:denied": 100.0, "in:plugin": 0.0})
    second = snapshot(1002, dropped={"out:queue_full": 9.0, "in:denied": 100.0, "in:plugin": 0.0})
    assert drops(first, second) == [("out:queue_full", 2.0, 9), ("in:denied", 0.0, 100)]
    assert drops(None, second) == [("in:denied", 0.0, 100), ("out:queue_full", 0.0, 9)]


def test_the_commit_quantile_is_read_from_a_histogram() -> None:
    def buckets(*counts: float) -> dict[str, float]:
        limits = ("0.001", "0.01", "+Inf")
        return {
            f'commit_seconds_bucket{{le="{le}"}}': n for le, n in zip(limits, counts, strict=True)
        }

    assert commit_quantile(None, snapshot(1000), 0.99) is None
    assert commit_quantile(None, snapshot(1000, counters=buckets(0, 0, 0)), 0.99) is None
    first = snapshot(1000, counters=buckets(0, 100, 100))
    second = snapshot(1001, counters=buckets(100, 200, 200))
    assert commit_quantile(None, second, 0.99) == 0.01
    assert commit_quantile(first, second, 0.99) == 0.001


def lines(view: View, width: int = 110, height: int = 12) -> list[str]:
    found = render(view, width, height)
    assert len(found) <= height
    assert all(width_of(line) <= width for line in found), found
    return found


def view_of(*clients: dict[str, Any], **given: Any) -> View:
    view = View()
    view.take(snapshot(86400 * 2 + 100 + 3661, *clients, **given))
    return view


def test_the_screen() -> None:
    view = view_of(
        client("a", queued=1), client("b", queued=20, queued_bytes=2000, username="ann"),
        dropped={"out:queue_full": 3},
    )  # fmt: skip
    found = lines(view)
    assert found[0].startswith("hookmq 9.9  up 2d 01:01:01  ")
    assert found[1] == "in 7.0 msg/s 7 B/s   out 7.0 msg/s 7 B/s   connects 7.0/s   refused 7.0/s"
    assert found[2] == "connections 3  sessions 1,234  subscriptions 5  retained 6  queues 1.5 MB"
    assert found[3] == "loop lag 1.2 ms  commit p99 -"
    assert found[4] == "drops  out:queue_full 0.0/s (3)"
    assert found[6].split() == [
        "CLIENT", "USER", "ONLINE", "LISTENER", "ADDRESS", "SUBS", "INFLIGHT", "QUEUED▼", "BYTES",
    ]  # fmt: skip
    assert found[7].split() == ["b", "ann", "yes", "tcp", "192.0.2.1", "0", "0", "20", "2.0", "kB"]
    assert found[8].split() == ["a", "-", "yes", "tcp", "192.0.2.1", "0", "0", "1", "0", "B"]
    assert found[-1].startswith("q quit")
    assert "\x1b" not in "".join(found)
    assert "\x1b[1mhookmq" in render(view, 110, 12, color=True)[0]


@pytest.mark.parametrize("width", [2, 5, 20, 40, 80, 300])
@pytest.mark.parametrize("height", [1, 2, 8, 50])
def test_every_size_of_the_screen(width: int, height: int) -> None:
    view = view_of(client("名前" * 20), client("b\x1b[2J\u202e"), dropped={"out:queue_full": 3})
    view.selected = "b\x1b[2J\u202e"
    found = lines(view, width, height)
    assert "\x1b" not in "".join(found)
    view.problem = "cannot be reached" * 20
    lines(view, width, height)


def test_nothing_is_shown_before_the_first_answer() -> None:
    view = View()
    assert lines(view) == ["connecting…"]
    view.problem = "http://x cannot be reached"
    assert lines(view) == ["http://x cannot be reached"]


def test_a_problem_is_shown_over_the_last_snapshot_until_the_next_one() -> None:
    view = view_of(client("a"))
    view.problem = "cannot be reached; trying again"
    assert lines(view)[5] == "cannot be reached; trying again"
    assert lines(view)[7].split()[0] == "a"
    view.take(snapshot(200.0, client("a")))
    assert lines(view)[5] == ""


def test_the_table_is_sorted_and_scrolled() -> None:
    clients = [client(f"c{number}", queued=number % 3, username=None) for number in range(9)]
    assert [one["client_id"] for one in ordered(clients, "client_id", True)][:2] == ["c8", "c7"]
    assert [one["client_id"] for one in ordered(clients, "queued", True)][:3] == ["c2", "c5", "c8"]
    mixed = [client("x", username="z"), client("y"), client("z", username="a")]
    assert [one["client_id"] for one in ordered(mixed, "username", False)] == ["y", "z", "x"]
    view = view_of(*clients)
    view.press("end")
    assert lines(view, height=10)[-2].split()[0] == ">c6"


def test_keys_choose_the_sort_column() -> None:
    view = view_of(client("a"))
    view.press("<")
    assert (view.sort, view.reverse) == ("inflight", True)
    assert "INFLIGHT▼" in lines(view)[6].split()
    for _ in range(3):
        view.press(">")
    assert (view.sort, view.reverse) == ("client_id", False)
    view.press("r")
    assert view.reverse


def test_a_kick_needs_a_client_and_y() -> None:
    view = view_of(client("a"), client("b"))
    view.press("k")
    assert (view.mode, view.message) == ("", "select a client first, with ↓")
    view.press("down")
    view.press("down")
    assert view.selected == "b"
    view.press("k")
    assert lines(view)[5] == "disconnect b? y/n"
    view.press("n")
    assert (view.mode, view.kicks, lines(view)[5]) == ("", [], "nothing was done")
    view.press("k")
    view.press("y")
    assert (view.mode, view.kicks) == ("", ["b"])


def test_a_kick_is_not_offered_for_a_client_that_is_gone() -> None:
    view = view_of(client("a"))
    view.press("down")
    view.take(snapshot(200.0, client("b")))
    view.press("k")
    assert view.mode == ""


def test_a_filter_is_typed() -> None:
    view = view_of(client("a"))
    for key in ("/", "l", "q", "backspace", "x"):
        assert view.press(key)
    assert lines(view)[5] == "client ids that begin with: lx_"
    assert view.prefix == ""
    view.press("enter")
    assert (view.prefix, view.mode) == ("lx", "")
    assert lines(view)[5] == "client ids that begin with lx"
    view.press("/")
    view.press("escape")
    assert view.prefix == "lx"
    assert not view.press("q")


def test_what_a_terminal_sends_becomes_keys() -> None:
    text = "\x1b[A\x1b[6~q\x1b[1;5C\x1bOBü\x7f\r\x07"
    assert list(split_keys(text)) == ["up", "page down", "q", "down", "ü", "backspace", "enter"]
    assert list(split_keys("\x1b")) == ["escape"]


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 5, "abc  "), ("abcdef", 4, "abc…"), ("名前", 4, "名前"), ("名前x", 4, "名… "), ("a", 0, ""),
     ("\x1b[2J", 9, "\\x1b[2J  ")],
)  # fmt: skip
def test_text_is_cut_to_a_width(text: str, width: int, shown: str) -> None:
    assert fit(text, width) == shown


def test_numbers_for_people() -> None:
    assert [octets(n) for n in (0, 999, 1000, 2.5e9, 7e13)] == [
        "0 B", "999 B", "1.0 kB", "2.5 GB", "70.0 TB",
    ]  # fmt: skip
    assert duration(59.9) == "00:00:59"
