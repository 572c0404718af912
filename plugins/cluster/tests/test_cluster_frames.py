"""Frames survive the round trip in any number of parts, and damaged ones are refused with the reason."""

from typing import Any

import pytest
from cluster_source import needs_the_source
from hookmq.plugin import Message, Properties
from hookmq.storage_api import Dequeue, Enqueue, PutMessage, PutSession, Record
from hookmq_cluster import frames
from hookmq_cluster.frames import (
    WITH_PACKETS,
    FrameError,
    Frames,
    MessageItem,
    Origin,
    OwnerFrame,
    PacketRun,
    PeerFrame,
    decode_message,
    decode_value,
    encode_message,
    encode_owner,
    encode_peer,
    encode_value,
)
from hookmq_testing.contracts import SESSION, comparable, fields_of, make_message
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import MESSAGES, RECORDS, TEXT

ORIGIN = Origin("n1", "b0", 7)
ORIGINS = st.builds(Origin, TEXT, TEXT, st.integers(0, 1 << 62))
ITEMS = st.builds(MessageItem, MESSAGES, st.lists(TEXT, max_size=2).map(tuple), st.booleans())
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | TEXT
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=8),
    max_leaves=20,
)


def read_all(parts: list[bytes]) -> Any:
    reader = Frames()
    found = [reader.read(part) for part in parts]
    assert found[:-1] == [None] * (len(parts) - 1)
    assert reader.incomplete == 0
    return found[-1]


@given(ORIGINS, st.integers(0, 1 << 62), st.lists(RECORDS, max_size=6), st.integers(120, 2000))
def test_owner_frames_survive(origin: Origin, inbox: int, records: list[Record], size: int) -> None:
    frame = OwnerFrame(origin, inbox, tuple(records))
    parts = encode_owner(frame, size)
    assert all(len(part) <= size for part in parts)
    assert comparable(read_all(parts)) == comparable(frame)


@given(ORIGINS, st.lists(ITEMS, max_size=4), st.integers(120, 2000))
def test_peer_frames_survive(origin: Origin, items: list[MessageItem], size: int) -> None:
    frame = PeerFrame(origin, tuple(items))
    parts = encode_peer(frame, size)
    assert comparable(read_all(parts)) == comparable(frame)
    assert decode_value(parts[0])[0] == 1  # nodes of the version before can read it


RUNS = st.tuples(TEXT, st.booleans(), st.integers(0, 1 << 62), st.binary(max_size=300))


@given(st.lists(ITEMS, max_size=3), RUNS, st.lists(ITEMS | RUNS, max_size=3))
def test_packets_survive_in_order_in_a_frame_of_version_2(
    before: list[MessageItem], run: PacketRun, after: list[MessageItem | PacketRun]
) -> None:
    frame = PeerFrame(ORIGIN, (*before, run, *after))
    parts = encode_peer(frame, 200)
    assert comparable(read_all(parts)) == comparable(frame)
    assert decode_value(parts[0])[0] == WITH_PACKETS == 2


@given(MESSAGES)
def test_messages_survive(message: Message) -> None:
    stored = encode_value(encode_message(message))
    assert fields_of(decode_message(decode_value(stored))) == fields_of(message)


def test_a_property_that_publish_does_not_allow_is_left_out() -> None:
    kept = Properties(content_type="x")
    odd = Properties.of({**kept.values, 0x01: 9, 0x1F: "why", 0x26: (5,), 0x08: 7})
    message = Message("t", b"", properties=odd)
    assert decode_message(decode_value(encode_value(encode_message(message)))).properties == kept


def test_claims_of_other_types_become_json() -> None:
    client = SESSION.client._replace(claims={"huge": 1 << 200, "set": {"a"}, "bytes": b"x"})
    record = PutSession(SESSION._replace(client=client))
    [found] = read_all(encode_owner(OwnerFrame(ORIGIN, 0, (record,)), 10_000)).records
    assert found.session.client.claims == {"huge": 1 << 200, "set": "{'a'}", "bytes": "b'x'"}


def test_parts_have_the_size_of_an_entry() -> None:
    frame = OwnerFrame(ORIGIN, 0, (PutMessage(1, make_message("t", b"x" * 100_000)),))
    parts = encode_owner(frame, 1000)
    assert {len(part) for part in parts[:-1]} <= set(range(990, 1001))
    assert len(parts) <= 108
    with pytest.raises(ValueError, match="cannot have parts of 20 bytes"):
        encode_owner(frame, 20)
    with pytest.raises(ValueError, match="more than 10000 parts"):
        encode_owner(frame, 26)


# damaged frames ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        Frames().read(data)


@given(VALUES, VALUES)
def test_any_values_are_refused_or_read(value: Any, body: Any) -> None:
    for header in (
        value,
        [1, 1, "n", "b", 0, 0, 1, encode_value(body)],
        [1, 2, "n", "b", 0, 0, 1, encode_value(body)],
    ):
        try:
            Frames().read(encode_value(header))
        except FrameError:
            pass


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_changed_frames_are_refused_or_read(records: list[Record], data: st.DataObject) -> None:
    [part] = encode_owner(OwnerFrame(ORIGIN, 0, tuple(records)), 1 << 20)
    at = data.draw(st.integers(0, len(part) - 1))
    kept = bytearray(part)
    kept[at] ^= data.draw(st.integers(1, 255))
    try:
        Frames().read(bytes(kept))
    except FrameError:
        pass
    with pytest.raises(FrameError):
        Frames().read(part[:at])


@given(st.lists(RECORDS, min_size=1, max_size=3), VALUES, st.data())
def test_changed_fields_are_refused_or_read(
    records: list[Record], value: Any, data: st.DataObject
) -> None:
    """Values of other types and ranges at any place are refused, never met with another exception."""

    def change(fields: Any) -> Any:
        at = data.draw(st.integers(0, len(fields) - 1))
        inner = fields[at]
        if type(inner) is tuple and inner and data.draw(st.booleans()):
            return (*fields[:at], change(inner), *fields[at + 1 :])
        return (*fields[:at], value, *fields[at + 1 :])

    [part] = encode_owner(OwnerFrame(ORIGIN, 0, tuple(records)), 1 << 20)
    *header, body = decode_value(part)
    changed = encode_value(change(decode_value(body)))
    try:
        Frames().read(encode_value([*header, changed]))
    except FrameError:
        pass


def header(**changed: Any) -> bytes:
    fields = {
        "version": 1,
        "kind": 1,
        "node": "n",
        "boot": "b",
        "number": 3,
        "part": 0,
        "parts": 1,
        "body": b"\x92\0\x90",
    }
    return encode_value(list({**fields, **changed}.values()))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "invalid msgpack"),
        (encode_value([]), "not a frame: expected an array"),
        (encode_value(["1"]), "not a frame: expected a version"),
        (header(version=3), "unknown version 3 of a frame: expected 1 or 2"),
        (header(version=0), "unknown version 0"),
        (encode_value([1, 1]), "header: expected 8 fields, found 2"),
        (header(node=5), "header: node: wrong type"),
        (header(kind=9), "header: unknown kind 9"),
        (header(part=1), "header: number 3, part 1 of 1"),
        (header(parts=10_001), "part 0 of 10001"),
        (header(body=b"\xc1"), "frame 3 of node 'n', boot 'b': invalid msgpack"),
        (header(body=encode_value([-1, []])), "expected an inbox sequence and records"),
        (header(body=encode_value([0, [8]])), "records: expected codes and fields"),
        (header(body=encode_value([0, [99, []]])), "record 1 of 1: unknown kind 99"),
        (
            header(body=encode_value([0, [2, ["c"], 8, ["c/x", "1"]]])),
            "record 2 of 2: Dequeue: seq: expected int, found '1'",
        ),
        (
            header(body=encode_value([0, [8, ["c/x"]]])),
            "record 1 of 1: Dequeue: expected 2 fields, found 1",
        ),
        (header(body=encode_value([0, [9, ["c", 65536]]])), "packet_id: invalid value 65536"),
        (header(kind=2, body=encode_value([1])), "message 1 of 1: expected message, groups"),
        (header(kind=2, body=encode_value([[[], [], True]])), "message 1 of 1: message: expected 8"),
    ],
)  # fmt: skip
def test_the_error_says_what_and_where(data: bytes, text: str) -> None:
    with pytest.raises(FrameError) as caught:
        Frames().read(data)
    assert text in str(caught.value)


@needs_the_source
def test_the_version_before_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Frames().read(header()) is not None
    [new] = encode_peer(PeerFrame(ORIGIN, (("c", True, 1, b"0"),)), 1000)
    assert Frames().read(new) is not None
    monkeypatch.setattr(frames, "VERSION", 1)
    with pytest.raises(FrameError, match="unknown version 2"):
        Frames().read(new)


# parts ---------------------------------------------------------------------------------------------------------------


def owner(number: int, size: int = 300, node: str = "n1") -> list[bytes]:
    frame = OwnerFrame(
        Origin(node, "b0", number), 0, (PutMessage(1, make_message("t", b"x" * size)),)
    )
    return encode_owner(frame, 200)


def test_missing_parts_of_a_log_are_an_error() -> None:
    first, second = owner(1), owner(2)
    reader = Frames()
    reader.read(first[0])
    assert reader.incomplete == 1
    with pytest.raises(FrameError, match=r"frame 1 of node 'n1'.*only 1 of \d parts"):
        reader.read(second[0])
    with pytest.raises(FrameError, match=r"part 2 of \d does not follow"):
        Frames().read(first[1])
    [small] = owner(3, 1)
    reader = Frames()
    reader.read(first[0])
    with pytest.raises(FrameError, match=r"only 1 of"):
        reader.read(small)


def test_missing_parts_without_a_log_are_counted() -> None:
    first, second = owner(1), owner(2)
    reader = Frames(lossy=True)
    assert reader.read(first[1]) is None
    assert reader.read(first[0]) is None
    found = [reader.read(part) for part in second]
    assert isinstance(found[-1], OwnerFrame)
    assert (reader.lost, reader.incomplete) == (2, 0)


def test_parts_of_different_nodes_may_alternate() -> None:
    reader = Frames()
    found = [
        reader.read(part)
        for pair in zip(owner(1), owner(1, node="n2"), strict=True)
        for part in pair
    ]
    assert [frame.origin.node for frame in found if frame is not None] == ["n1", "n2"]


def test_a_number_as_boolean_is_read_as_boolean() -> None:
    entry = Enqueue("c/a", 1, 1, 1, 0, 1, (), "", 5, 0)  # type: ignore[arg-type]
    [found] = read_all(
        encode_owner(OwnerFrame(ORIGIN, 0, (entry, Dequeue("c/a", 1))[:1]), 1000)
    ).records
    assert (found.retain, found.released) == (True, False)
