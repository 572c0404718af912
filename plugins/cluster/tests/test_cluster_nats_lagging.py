"""Reading and following when servers lag or messages are missing. Real servers do this too rarely for a test, so the
answers are written here, in the form in which real servers send them.
"""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from hookmq_cluster.engine import Stored, Unavailable
from hookmq_cluster.nats_client import Answer, Handler, NatsClient
from hookmq_cluster.nats_following import SILENT, Following
from hookmq_cluster.nats_messages import api_message, delivery, direct_message, seconds
from hookmq_cluster.nats_reading import Reading
from hookmq_cluster.nats_requests import TIMEOUT
from hookmq_testing.runtime import VirtualRuntime

END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n"
TIME = "2026-11-29T01:02:03.5Z"
NOTHING = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


class Requests:
    """A client without a connection: it keeps what is sent, and the test answers."""

    def __init__(self) -> None:
        self.open: list[tuple[str, dict[str, Any], Answer, str]] = []
        self._count = 0
        self.written: list[bytes] = []
        self.handlers: dict[int, Handler] = {}
        self.online = True

    def connected(self) -> bool:
        return self.online

    def silence(self) -> str:
        return "no server answered"

    def denies(self, subject: str) -> bool:
        return False

    def request(self, subject: str, data: bytes, answer: Answer) -> str:
        self._count += 1
        self.open.append((subject, json.loads(data) if data else {}, answer, str(self._count)))
        return str(self._count)

    def forget(self, subject: str) -> None:
        self.open = [one for one in self.open if one[3] != subject]

    def write(self, data: bytes, now: bool = False) -> None:
        self.written.append(data)

    def subscribe(self, subject: str, handler: Handler) -> int:
        self.handlers[len(self.handlers) + 1] = handler
        return len(self.handlers)

    def unsubscribe(self, number: int) -> None:
        pass

    def take(self, kind: str) -> tuple[dict[str, Any], Answer]:
        """Return the oldest open request of a kind, and how to answer it."""
        for one in self.open:
            if kind in one[0]:
                self.open.remove(one)
                return one[1], one[2]
        raise AssertionError(f"no {kind} in {self.open}")


def direct(subject: str, sequence: int) -> bytes:
    return (
        f"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {sequence}\r\n"
        f"Nats-Time-Stamp: {TIME}\r\nNats-Num-Pending: 1\r\n\r\n"
    ).encode()


def api(subject: str, sequence: int) -> bytes:
    return json.dumps(
        {"message": {"subject": subject, "seq": sequence, "data": "eA==", "time": TIME}}
    ).encode()


class Page:
    """One reading."""

    def __init__(self, filters: list[str], after: int = 0, seen: int = 0) -> None:
        self.requests = Requests()
        self.runtime = VirtualRuntime()
        self.pages: list[list[Stored] | Unavailable] = []
        client = cast(NatsClient, self.requests)
        Reading(client, self.runtime, "S", filters, after, seen, self.pages.append)

    def answer(self, kind: str, *answers: tuple[bytes, bytes]) -> dict[str, Any]:
        """Answer a request and return it."""
        fields, answer = self.requests.take(kind)
        for header, data in answers:
            answer(header, data)
        return fields

    def sequences(self) -> list[int]:
        """Return those of the page."""
        [page] = self.pages
        assert isinstance(page, list), page
        return [one.sequence for one in page]


def test_an_empty_answer_is_checked_with_the_leader() -> None:
    page = Page(["a"], after=4, seen=7)
    assert page.answer("DIRECT", (b"NATS/1.0 404 No Messages\r\n\r\n", b""))["seq"] == 5
    assert page.answer("MSG.GET", (b"", api("a", 6))) == {"seq": 5, "next_by_subj": "a"}
    assert page.sequences() == [6]


def test_nothing_more_is_only_believed_of_a_leader_that_has_what_was_seen() -> None:
    page = Page(["a"], seen=7)
    page.answer("DIRECT", (END, b""))
    page.answer("MSG.GET", (b"", json.dumps(NOTHING).encode()))
    page.answer("STREAM.INFO", (b"", b'{"state":{"last_seq":6}}'))
    assert page.pages == []
    page.runtime.advance(0.2)
    page.answer("STREAM.INFO", (b"", b'{"state":{"last_seq":7}}'))
    assert page.pages == [[]]


def test_a_leader_that_lags_for_long_is_unavailable() -> None:
    page = Page(["a"], seen=7)
    page.answer("DIRECT", (END, b""))
    page.answer("MSG.GET", (b"", json.dumps(NOTHING).encode()))
    while not page.pages:
        page.answer("STREAM.INFO", (b"", b'{"state":{"last_seq":6}}'))
        page.runtime.advance(0.11)
    assert page.runtime.now() == pytest.approx(TIMEOUT, abs=0.2)
    assert page.pages == [Unavailable("the server has 6 messages of at least 7")]


def test_a_page_ends_where_a_follower_that_lags_ends() -> None:
    # The follower that answers for b lags: it does not have 6 yet, which is of b.
    page = Page(["a", "b"])
    page.answer("STREAM.INFO", (b"", b'{"state":{"last_seq":8}}'))
    page.answer("DIRECT", (direct("a", 3), b"x"), (direct("a", 7), b"x"), (END, b""))
    page.answer("DIRECT", (direct("b", 4), b"x"), (END, b""))
    assert page.sequences() == [3, 4]


def test_a_page_ends_at_the_last_sequence_of_its_begin() -> None:
    # b had nothing when the leader was asked. Then 9 of b and 10 of a were stored.
    page = Page(["a", "b"])
    page.answer("STREAM.INFO", (b"", b'{"state":{"last_seq":8}}'))
    page.answer("DIRECT", (direct("a", 10), b"x"), (END, b""))
    page.answer("DIRECT", (END, b""))
    page.answer("MSG.GET", (b"", json.dumps(NOTHING).encode()))
    assert page.sequences() == []


def test_a_lost_connection_begins_a_page_again() -> None:
    page = Page(["a"])
    page.requests.online = False
    page.answer("DIRECT", (direct("a", 3), b"x"), (b"", cast(bytes, None)))
    page.runtime.advance(1.0)
    page.requests.online = True
    page.runtime.advance(0.2)
    page.answer("DIRECT", (direct("a", 3), b"x"), (direct("a", 4), b"x"), (END, b""))
    assert page.sequences() == [3, 4]


def test_malformed_answers_are_unavailable() -> None:
    for answers in (
        [(b"NATS/1.0 408 Bad Request\r\n\r\n", b"")],
        [(b"", b"x")],
        [(direct("a", 3), b"x"), (b"NATS/1.0\r\nNats-Sequence: x\r\n\r\n", b"")],
    ):
        page = Page(["a"])
        page.answer("DIRECT", *answers)
        assert isinstance(page.pages[0], Unavailable)
    page = Page(["a"])
    page.answer("DIRECT", (END, b""))
    page.answer("MSG.GET", (b"", b'{"message":{"seq":"x"}}'))
    assert isinstance(page.pages[0], Unavailable)
    page = Page(["a"])
    for _ in range(3):
        page.answer("DIRECT", (b"NATS/1.0 503\r\n\r\n", b""))
        page.runtime.advance(0.11)
    page.runtime.advance(TIMEOUT)
    assert page.pages == [Unavailable("JetStream has no leader")]


def test_a_request_that_nobody_answers_is_repeated() -> None:
    page = Page(["a"])
    page.runtime.advance(1.1)
    assert len(page.requests.open) == 1
    page.answer("DIRECT", (direct("a", 7), b"x"))
    page.runtime.advance(2.5)
    assert page.requests.open == []
    assert page.pages == []
    page = Page(["a"])
    for _ in range(2):
        page.requests.take("DIRECT")
        page.runtime.advance(2.0)
    page.answer("DIRECT", (direct("a", 7), b"x"), (END, b""))
    assert page.sequences() == [7]
    page.runtime.advance(TIMEOUT)
    assert page.requests.open == []
    page = Page(["a"])
    page.runtime.advance(TIMEOUT + 0.1)
    assert page.pages == [Unavailable("no server answered")]
    assert page.requests.open == []


class Follow:
    """One following."""

    def __init__(self, after: int = 0) -> None:
        self.requests = Requests()
        self.runtime = VirtualRuntime()
        self.seen: list[int] = []
        self.following = Following(
            cast(NatsClient, self.requests),
            self.runtime,
            "S",
            ["a"],
            after,
            lambda one: self.seen.append(one.sequence),
            lambda _sequence: None,
        )

    def made(self) -> int:
        """Answer that a consumer was made. Return the first sequence that it sends."""
        fields, answer = self.requests.take("CONSUMER.CREATE")
        answer(b"", b'{"name":"x"}')
        first: int = fields["config"]["opt_start_seq"]
        return first

    def message(self, sequence: int, delivered: int, consumer: int = 0) -> None:
        """Deliver a message to the newest consumer, or another one."""
        number = consumer or len(self.requests.handlers)
        answer = f"$JS.ACK.S.c.1.{sequence}.{delivered}.1700000000000000000.0"
        self.requests.handlers[number]("a", answer, b"", b"x")

    def control(self, header: bytes, answer: str = "") -> None:
        """Deliver a control message."""
        self.requests.handlers[len(self.requests.handlers)]("i", answer, header, b"")


def test_a_gap_makes_the_consumer_again_after_the_last_message() -> None:
    follow = Follow(after=4)
    assert follow.made() == 5
    follow.message(5, 1)
    follow.message(9, 3)
    assert follow.seen == [5]
    assert follow.made() == 6
    follow.message(11, 4, consumer=1)
    assert follow.seen == [5]
    follow.message(7, 1)
    follow.message(9, 2)
    assert follow.seen == [5, 7, 9]


def test_a_message_that_was_lost_last_is_noticed() -> None:
    follow = Follow()
    follow.made()
    follow.message(5, 1)
    follow.control(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n")
    assert not [one for one in follow.requests.open if "CREATE" in one[0]]
    follow.control(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\n\r\n")
    assert follow.made() == 6


def test_flow_control_is_answered() -> None:
    follow = Follow()
    follow.made()
    follow.control(b"NATS/1.0 100 FlowControl Request\r\n\r\n", "fc.1")
    assert follow.requests.written[-1] == b"PUB fc.1 0\r\n\r\n"
    follow.control(
        b"NATS/1.0 100 Idle\r\nNats-Consumer-Stalled: fc.2\r\nNats-Last-Consumer: 0\r\n\r\n"
    )
    assert follow.requests.written[-1] == b"PUB fc.2 0\r\n\r\n"


def test_silence_makes_the_consumer_again_and_failures_are_repeated() -> None:
    follow = Follow()
    follow.made()
    follow.message(5, 1)
    follow.runtime.advance(SILENT + 1.5)
    assert follow.made() == 6
    follow.runtime.advance(SILENT + 1.5)
    _, answer = follow.requests.take("CONSUMER.CREATE")
    answer(b"", b'{"error":{"code":500,"err_code":10101,"description":"no"}}')
    follow.runtime.advance(1.1)
    assert follow.made() == 6
    assert ("warning", "cluster.follow_delayed", {"reason": "no"}) in follow.runtime.logged
    follow.following.end()
    count = len(follow.requests.open)
    follow.runtime.advance(60.0)
    assert len(follow.requests.open) == count


def test_a_reconnection_makes_the_consumer_again() -> None:
    follow = Follow()
    follow.made()
    follow.message(5, 1)
    follow.requests.online = False
    follow.following.reconnected(False)
    follow.runtime.advance(30.0)
    assert not [one for one in follow.requests.open if "CREATE" in one[0]]
    follow.requests.online = True
    follow.following.reconnected(True)
    assert follow.made() == 6


def test_messages_that_are_not_of_a_consumer_make_it_again() -> None:
    follow = Follow()
    follow.made()
    for answer in ("", "x", "$JS.ACK.S.c.1.x.1.1.0"):
        follow.requests.handlers[len(follow.requests.handlers)]("a", answer, b"", b"x")
        assert follow.made() == 1
    assert follow.seen == []


def malformed(decode: Callable[[Any], object], value: object) -> bool:
    """Return whether `decode` refuses `value`."""
    try:
        decode(value)
    except ValueError:
        return True
    return False


def test_the_forms_of_messages() -> None:
    assert seconds("2026-11-29T01:02:03.5Z") == seconds("2026-11-29 01:02:03.500 +0000 UTC")
    assert seconds("1970-01-01T00:00:01.000000001Z") == 1.000000001
    assert seconds("1970-01-01T00:00:02Z") == 2.0
    for text in ("", "x", "2026-11-29"):
        assert malformed(seconds, text[:9])
    assert direct_message(direct("a.b", 3), b"x") == Stored("a.b", 3, b"x", seconds(TIME))
    assert api_message(json.loads(api("a.b", 3))) == Stored("a.b", 3, b"x", seconds(TIME))
    for broken in ({}, {"message": None}, {"message": {"subject": "a", "seq": 1, "time": "x"}}):
        assert malformed(api_message, broken)
    assert delivery("$JS.ACK.S.c.1.7.3.2000000000.0") == (7, 3, 2.0)
    assert delivery("$JS.ACK.domain.hash.S.c.1.7.3.2000000000.0.token") == (7, 3, 2.0)
    for text in ("", "$JS.ACK.S.c.1.7.3", "a.b.c.d.e.f.g.h.i", "$JS.ACK.S.c.1.x.3.2.0"):
        assert malformed(delivery, text)
