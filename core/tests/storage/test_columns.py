"""Test the columns in which journals collect messages."""

from dataclasses import fields

from hookmq.model.message import Message
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.storage.columns import CLIENT, MessageColumns, Room, collect

PLAIN = Message("t/a", b"1", 1, sender="c", received_at=1.5)
RARE = Message(
    "t/ä", b"22", 2, True, Properties(content_type="x"), None, "plugin:p", 2.5, expires_at=9.5
)


def messages(columns: MessageColumns) -> list[Message]:
    return [
        Message(
            topic,
            columns.payloads[row],
            columns.qos[row],
            row in columns.retained,
            columns.properties.get(row, EMPTY),
            columns.senders[row],
            columns.origins.get(row, CLIENT),
            columns.times[row],
            columns.expires.get(row),
        )
        for row, topic in enumerate(columns.topics)
    ]


def assert_same(found: list[Message], wanted: list[Message]) -> None:
    names = [one.name for one in fields(Message)]
    assert [[getattr(one, name) for name in names] for one in found] == [
        [getattr(one, name) for name in names] for one in wanted
    ]


def test_columns_keep_every_field_of_a_message() -> None:
    columns = collect([PLAIN, RARE, PLAIN])
    columns.add("u", b"", 0, RARE.properties, None, 3.5, 4.5)
    wanted = Message("u", b"", 0, False, RARE.properties, None, CLIENT, 3.5, 4.5)
    assert len(columns) == 4
    assert_same(messages(columns), [PLAIN, RARE, PLAIN, wanted])


def test_a_part_has_the_rows_from_its_start() -> None:
    columns = collect([PLAIN, RARE, PLAIN, RARE])
    assert_same(messages(columns.part(1, 3)), [RARE, PLAIN])
    assert_same(messages(columns.part(2, 9)), [PLAIN, RARE])


def test_times_in_microseconds() -> None:
    columns = collect(
        Message("t", b"", received_at=time) for time in (2.5, 2.5, 1.25, 9.000001, 2.5, 1.9999999)
    )
    wanted = [2_500_000, 2_500_000, 1_250_000, 9_000_001, 2_500_000, 1_999_999]
    assert columns.microseconds() == (wanted, 1_250_000, 9_000_001)
    assert collect([PLAIN]).microseconds() == ([1_500_000], 1_500_000, 1_500_000)


def test_what_is_taken_is_gone() -> None:
    columns = collect([RARE])
    taken = columns.take()
    assert_same(messages(taken), [RARE])
    assert len(columns) == 0
    columns.add_message(PLAIN)
    assert_same(messages(columns), [PLAIN])
    assert_same(messages(taken), [RARE])


def test_a_room_counts_what_its_columns_get() -> None:
    room = Room(record=10, text=4, batch=100, measure=lambda properties: 1000)
    first, second = MessageColumns(room), MessageColumns(room)
    first.add_message(PLAIN)
    assert room.used == 100 + 10 + 1 + 4 * (3 + 1)
    second.add_message(RARE)
    assert room.used == 127 + 100 + 10 + 2 + 4 * 3 + 1000
    first.add_message(PLAIN)
    assert room.used == 127 + 1124 + 27
    first.take()
    assert room.used == 127 + 1124 + 27


def test_a_room_measures_properties_by_their_extent() -> None:
    room = Room()
    MessageColumns(room).add_message(RARE)
    assert room.used == len("t/ä") + 2 + RARE.properties.extent()
