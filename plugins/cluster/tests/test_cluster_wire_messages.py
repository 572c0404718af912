"""Wire messages: they survive a round trip, and nothing that a stranger sends raises an error."""

import msgpack  # type: ignore[import-untyped]
import pytest
from hookmq_cluster.announcements import (
    AnnouncementError,
    Begin,
    BeginAll,
    Change,
    Drop,
    End,
    EndAll,
    Leave,
    Put,
    decode_changes,
    encode_changes,
)
from hookmq_cluster.wire_messages import (
    Ack,
    HandOver,
    Hello,
    Kick,
    Open,
    Packet,
    Received,
    Reopen,
    WireMessage,
    WireReader,
    encode,
)
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given
from hypothesis import strategies as st

MESSAGES: tuple[WireMessage, ...] = (
    Hello("10.0.0.1:1884", True),
    Open("boot", 3, 2, 17),
    Reopen("boot"),
    Packet("boot", 3, 18, True, 1, b"\x00content"),
    Ack("boot", 3, 18, False),
    Kick("client \ud800", 1700000000.25),
    HandOver("lane"),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_a_round_trip(message: WireMessage) -> None:
    reader = WireReader(VirtualRuntime())
    received = reader.read("subject", encode("node", "boot", message))
    assert received == Received("node", "boot", message)
    assert received is not None
    assert type(received.message) is type(message)
    assert (reader.malformed, reader.unknown) == (0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb("text"),
        msgpack.packb([]),
        msgpack.packb(["1", "ack"]),
        msgpack.packb([1, "ack", "node"]),
        msgpack.packb([1, "ack", "node", 5]),
        msgpack.packb([1, ["ack"], "node", "boot"]),
        msgpack.packb([1, "ack", "node", "boot", "boot", 1, 2]),
        msgpack.packb([1, "ack", "node", "boot", "boot", 1, 2, 0]),
        msgpack.packb([1, "ack", "node", "boot", "boot", 1, -2, True]),
        msgpack.packb([1, "ack", "node", "boot", "boot", 1, 2, True, 3]),
        msgpack.packb([1, "packet", "node", "boot", "boot", 1, 2, True, 1, "text"]),
        encode("node", "boot", Hello("address", True)) + b"\x00",
    ],
)
def test_malformed_messages_are_counted(data: bytes) -> None:
    runtime = VirtualRuntime()
    reader = WireReader(runtime)
    assert reader.read("subject", data) is None
    assert (reader.malformed, reader.unknown) == (1, 0)
    ((level, event, fields),) = runtime.logged
    assert (level, event, fields["subject"]) == ("warning", "cluster.message_invalid", "subject")


def test_unknown_kinds_and_versions_are_counted() -> None:
    reader = WireReader(VirtualRuntime())
    assert reader.read("subject", msgpack.packb([2, "ack", "node", "boot", {}])) is None
    assert reader.read("subject", msgpack.packb([1, "news", "node", "boot"])) is None
    assert (reader.malformed, reader.unknown) == (0, 2)


def test_unreadable_messages_are_logged_once_a_minute() -> None:
    runtime = VirtualRuntime()
    reader = WireReader(runtime)
    for _ in range(50):
        reader.read("subject", b"")
        runtime.advance(5.0)
    assert len(runtime.logged) == 5
    assert runtime.logged[-1][2]["malformed"] == 49


@given(st.binary(max_size=200))
def test_random_bytes_do_not_raise(data: bytes) -> None:
    reader = WireReader(VirtualRuntime())
    assert reader.read("subject", data) is None
    assert reader.malformed + reader.unknown == 1


@given(st.integers(0, len(MESSAGES) - 1), st.data())
def test_damaged_messages_do_not_raise(index: int, data: st.DataObject) -> None:
    damaged = bytearray(encode("node", "boot", MESSAGES[index]))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    WireReader(VirtualRuntime()).read("subject", bytes(damaged))


CHANGES: list[Change] = [
    BeginAll(),
    Begin("lane", 5),
    Put("", None, "x/#", 2, 0),
    Put("lane", "share", "x", 1, 7),
    Drop("", None, "y"),
    Drop("lane", "share", "\ud800"),
    End("lane", 5),
    Leave("other"),
    EndAll(),
]


def test_announcements_survive_a_round_trip() -> None:
    found = decode_changes(encode_changes(CHANGES))
    assert found == CHANGES
    assert [type(change) for change in found] == [type(change) for change in CHANGES]


@given(st.data())
def test_damaged_announcements_raise_an_announcement_error(data: st.DataObject) -> None:
    damaged = bytearray(encode_changes(CHANGES))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_changes(bytes(damaged))
    except AnnouncementError:
        pass


@pytest.mark.parametrize(
    "change", [[0, "", None, "x", 3, 0], [0, "", None, "x", 0, -1], [9], [0, "", None, "x"], [True]]
)
def test_invalid_changes_are_refused(change: list[object]) -> None:
    with pytest.raises(AnnouncementError, match="change 1"):
        decode_changes(msgpack.packb([change]))
