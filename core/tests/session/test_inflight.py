"""Test how packet ids wrap around, and how responses wait for a commit."""

import pytest
from hookmq.model.message import Message
from hookmq.mqtt.properties import Properties
from hookmq.session.inflight import (
    PACKET_IDS,
    VOLATILE_1,
    VOLATILE_2,
    VOLATILE_RELEASED,
    Acknowledgement,
    Delivery,
    Outgoing,
    take_packet_id,
)


def taken(*numbers: int) -> dict[int, Delivery]:
    return dict.fromkeys(numbers, VOLATILE_1)


@pytest.mark.parametrize(
    ("busy", "last", "number"),
    [
        ((), 0, 1),
        ((), 1, 2),
        ((), 65_533, 65_534),
        ((), 65_534, 65_535),
        ((), 65_535, 1),
        ((1,), 0, 2),
        ((1, 2, 4), 0, 3),
        ((65_535,), 65_534, 1),
        ((65_534,), 65_533, 65_535),
        ((65_535, 1, 2), 65_534, 3),
        ((1,), 65_535, 2),
        ((2,), 0, 1),
    ],
)
def test_the_next_free_packet_id(busy: tuple[int, ...], last: int, number: int) -> None:
    """[MQTT-2.2.1-3, 2.2.1-4] The next packet id is the first free one after `last`."""
    assert take_packet_id(taken(*busy), last) == number


@pytest.mark.parametrize("free", [1, 2, 40_000, 65_534, 65_535])
@pytest.mark.parametrize("last", [0, 1, 65_534, 65_535])
def test_the_only_free_packet_id_is_found(free: int, last: int) -> None:
    assert take_packet_id(taken(*(n for n in range(1, 65_536) if n != free)), last) == free


def test_packet_ids_are_written_in_two_bytes() -> None:
    assert len(PACKET_IDS) == 65_536
    assert [PACKET_IDS[n] for n in (1, 256, 65_535)] == [b"\0\1", b"\1\0", b"\xff\xff"]


def test_an_answer_leaves_when_its_last_condition_is_met() -> None:
    left: list[str] = []
    answer = Acknowledgement(lambda: left.append("left"), b"\x40\2\0\1", publishes=1)
    answer.add_condition()
    answer.add_condition()
    answer.met()
    assert left == []
    answer.met()
    assert left == ["left"]
    assert (answer.data, answer.publishes, answer.then) == (b"\x40\2\0\1", 1, None)
    assert not Acknowledgement(lambda: None).publishes


def test_a_message_is_as_large_as_what_its_sender_chose() -> None:
    assert Outgoing(Message("topic", b"payload")).size == 12
    properties = Properties(content_type="text/plain")
    assert (
        Outgoing(Message("topic", b"payload", properties=properties)).size
        == 12 + properties.extent()
    )
    assert properties.extent() >= len("text/plain")


def test_a_message_anew_shares_the_encodings_and_not_the_id() -> None:
    first = Outgoing(Message("t", b"p"), id=7)
    second = first.without_id()
    assert (first.id, second.id) == (7, 0)
    assert second.message is first.message
    assert second.forms is first.forms is not None
    first.forms[True, 0, False, (), -1] = (b"head", b"tail")
    assert second.without_id().forms == {(True, 0, False, (), -1): (b"head", b"tail")}


def test_the_shared_deliveries_differ_by_their_next_packet() -> None:
    assert [d.qos for d in (VOLATILE_1, VOLATILE_2, VOLATILE_RELEASED)] == [1, 2, 2]
    assert len({id(d) for d in (VOLATILE_1, VOLATILE_2, VOLATILE_RELEASED)}) == 3
    for delivery in (VOLATILE_1, VOLATILE_2, VOLATILE_RELEASED):
        assert (delivery.seq, delivery.packet_id, delivery.group, delivery.waiter) == (
            0,
            0,
            None,
            None,
        )
        assert not delivery.released
        assert delivery.original is None
