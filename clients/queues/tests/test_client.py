"""Test publishing to a real broker's queues."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hookmq_queues_client import (
    Backoff,
    BrokerUnavailable,
    Client,
    Message,
    QueueClientError,
    QueueFull,
    Refused,
    UnknownQueue,
)
from lossy_network import Network
from ports import free_port
from serving import Served

Connect = Callable[..., Client]
SOON = Backoff(0.01, 1.0, 0.01)


async def first(client: Client, name: str, **options: Any) -> Message:
    """Return the first message in a queue."""
    async with asyncio.timeout(30):
        return await anext(client.queue(name).consume(**options))


async def test_a_message_arrives_with_its_headers(connect: Connect, name: str) -> None:
    client = connect()
    await client.queue(name).publish("café", topic="menu/today", headers={"price": "3"}, key="k")
    message = await first(client, name)
    assert message.payload == "café".encode()
    assert message.source_topic == f"$queue/{name}/menu/today"
    assert message.headers["price"] == "3"
    assert (message.id, message.queue, message.group) == (f"{name}:0", name, "default")
    assert (message.offset, message.delivery_count, message.dead_letter) == (0, 1, None)
    assert await message.ack()
    assert message.settled


async def test_many_publishes_at_once_use_one_connection(network: Network, name: str) -> None:
    async with Client(network.url) as client:
        queue = client.queue(name)
        await asyncio.gather(*(queue.publish(b"%d" % number) for number in range(1500)))
        assert network.connections == 1
        consumer = queue.consume(prefetch=100)
        found = []
        async with asyncio.timeout(60), consumer:
            async for message in consumer:
                found.append(int(message.payload))
                await message.ack()
                if len(found) == 1500:
                    break
        assert found == list(range(1500))


async def test_an_unknown_queue_is_an_error(connect: Connect) -> None:
    queue = connect().queue("nowhere")
    with pytest.raises(UnknownQueue) as caught:
        await queue.publish(b"x")
    assert (caught.value.code, caught.value.reason) == (0x90, "there is no queue 'nowhere'")
    with pytest.raises(UnknownQueue) as caught:
        await anext(queue.consume())
    assert caught.value.code == 0x8F
    with pytest.raises(UnknownQueue, match="has no group 'other'"):
        await anext(connect().queue("full").consume(group="other"))


async def test_a_full_queue_is_an_error(connect: Connect) -> None:
    client = connect()
    queue = client.queue("full")
    for _ in range(2):
        await queue.publish(b"x")
    with pytest.raises(QueueFull) as caught:
        await queue.publish(b"x")
    assert caught.value.code == 0x97
    message = await first(client, "full")
    await message.ack()


async def test_a_captured_message_has_its_topic(connect: Connect, broker: Served) -> None:
    client = connect()
    await client.publish("sensors/1/temperature", b"21", [("unit", "C")], None)
    for group in ("archive", "alerts"):
        message = await first(client, "captured", group=group, filter="#")
        assert (message.group, message.source_topic) == (group, "sensors/1/temperature")
        assert message.headers == {"unit": "C"}
        await message.ack()


async def test_a_message_expires(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await queue.publish(b"old", ttl=0.5)  # rounded up to a second
    await asyncio.sleep(1.2)
    await queue.publish(b"new")
    assert (await first(client, name)).payload == b"new"


async def test_tls(broker: Served, trust: ssl.SSLContext, name: str, connect: Connect) -> None:
    client = connect(f"mqtts://localhost:{broker.ports['tls']}", tls=trust)
    large = bytes(200_000)
    for _ in range(3):
        await client.queue(name).publish(large)
    consumer = client.queue(name).consume()
    for _ in range(3):
        message = await anext(consumer)
        assert message.payload == large
        assert await message.ack()


# paho does not close the socket of a failed handshake.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_a_certificate_that_is_not_trusted_is_an_error(
    broker: Served, connect: Connect
) -> None:
    client = connect(f"mqtts://localhost:{broker.ports['tls']}")
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.queue("full").publish(b"x")
    with pytest.raises(ssl.SSLCertVerificationError):
        await anext(client.queue("full").consume())


async def test_a_broker_that_cannot_be_reached_is_an_error(connect: Connect) -> None:
    client = connect(f"mqtt://127.0.0.1:{free_port()}", timeout=0.3)
    with pytest.raises(
        BrokerUnavailable, match=r"did not accept the message within 0\.3 s: .*refused"
    ):
        await client.queue("full").publish(b"x")


async def test_a_broker_that_says_nothing_is_an_error(connect: Connect, network: Network) -> None:
    network.lose_from_broker = True
    with pytest.raises(BrokerUnavailable, match="within"):
        await connect(network.url, timeout=0.3).queue("full").publish(b"x")


async def test_a_lost_puback_publishes_again(connect: Connect, network: Network, name: str) -> None:
    client = connect(network.url)
    queue = client.queue(name)
    await queue.publish(b"first")
    network.lose_from_broker = True
    publishing = asyncio.create_task(queue.publish(b"second"))
    direct = connect()
    messages = direct.queue(name).consume()
    assert [(await anext(messages)).payload for _ in range(2)] == [b"first", b"second"]
    await network.cut()
    await publishing
    assert network.connections == 2
    assert (await anext(messages)).payload == b"second"


async def test_a_queue_that_recognizes_duplicates_stores_a_message_once(
    connect: Connect, network: Network
) -> None:
    queue = connect(network.url).queue("once")
    await queue.publish(b"first")
    network.lose_from_broker = True
    publishing = asyncio.create_task(queue.publish(b"second"))
    messages = connect().queue("once").consume()
    assert [(await anext(messages)).payload for _ in range(2)] == [b"first", b"second"]
    await network.cut()
    await publishing
    await queue.publish(b"third", message_id="mine")
    await queue.publish(b"third", message_id="mine")
    await queue.publish(b"last")
    found = [await anext(messages) for _ in range(2)]
    assert [one.payload for one in found] == [b"third", b"last"]
    assert [one.offset for one in found] == [2, 3]


async def test_a_delayed_message_comes_later(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.queue(name)
    await queue.publish(b"later", delay=0.5)
    await queue.publish(b"now")
    messages = queue.consume()
    assert [(await anext(messages)).payload for _ in range(2)] == [b"now", b"later"]


async def test_an_urgent_message_comes_first(connect: Connect) -> None:
    client = connect()
    queue = client.queue("urgent")
    await queue.publish(b"usual")
    await queue.publish(b"urgent", priority=9)
    messages = queue.consume(prefetch=1)
    for expected in (b"urgent", b"usual"):
        message = await anext(messages)
        assert message.payload == expected
        await message.ack()


async def test_a_stream_is_read_from_any_position(connect: Connect) -> None:
    queue = connect().queue("history")
    for number in range(3):
        await queue.publish(b"%d" % number)
    between = datetime.now(UTC)
    for number in range(3, 5):
        await queue.publish(b"%d" % number)
    starts: dict[str, tuple[str | int | datetime, int]]
    starts = {"a": ("first", 0), "b": ("last", 4), "c": (2, 2), "d": (between, 3)}
    for group, (start, expected) in starts.items():
        async with queue.consume(group=group, start=start) as messages:
            message = await anext(messages)
            assert (message.offset, message.group) == (expected, group)
            await message.ack()
        # The group exists, so `start` is ignored.
        async with queue.consume(group=group, start="first") as messages:
            if expected < 4:
                assert (await anext(messages)).offset == expected + 1
    with pytest.raises(Refused, match="start: ") as caught:
        await anext(queue.consume(group="e", start=1000))
    assert caught.value.code == 0x83


async def test_each_consumer_has_its_own_client_id(
    connect: Connect, broker: Served, name: str
) -> None:
    client = connect(client_id="shop")
    for _ in range(2):
        async with client.queue(name).consume() as messages:
            await client.queue(name).publish(b"x")
            await (await anext(messages)).ack()
    found = [one["client_id"] for one in broker.log if one["event"] == "client.connected"]
    assert {"shop", "shop-1", "shop-2"} <= set(found)


async def test_a_closed_client_is_an_error(url: str, name: str) -> None:
    async with Client(url, reconnect=SOON) as client:
        queue = client.queue(name)
    with pytest.raises(QueueClientError, match="the client is closed"):
        await queue.publish(b"x")
    with pytest.raises(QueueClientError, match="the client is closed"):
        queue.consume()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"priority": 10}, "priority must be from 0 to 9, not 10"),
        ({"delay": -1.0}, "delay must be at least 0 seconds"),
        ({"delay": float("inf")}, "delay must be at least 0 seconds"),
        ({"ttl": 0}, "ttl must be above 0"),
        ({"topic": "a/+"}, "a topic has no"),
        ({"topic": "a/$ack"}, "do not start with"),
        ({"headers": {"delay": "3"}}, "the header 'delay' is set by an argument"),
    ],
)
async def test_a_wrong_argument_is_refused(
    connect: Connect, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        await connect().queue("full").publish(b"x", **options)


async def test_wrong_names_are_refused(connect: Connect) -> None:
    client = connect()
    for name in ("", "a/b", "+", "#"):
        with pytest.raises(ValueError, match="a queue's name"):
            client.queue(name)
    queue = client.queue("full")
    with pytest.raises(ValueError, match="a group's name"):
        queue.consume(group="")
    with pytest.raises(ValueError, match="prefetch must be from 1 to 65535"):
        queue.consume(prefetch=0)
    for start in ("second", -1, True, datetime(2030, 1, 31)):
        with pytest.raises(ValueError, match=r"start (must be|needs a time zone)"):
            queue.consume(start=start)


async def test_a_refusal_names_the_request() -> None:
    error = Refused("accept a message to $queue/a", 0x83, "")
    assert str(error) == "the broker refused to accept a message to $queue/a: 0x83, no reason"


@pytest.mark.parametrize("text", ["a\0b", "\udc80", "x" * 65_536, 7])
async def test_a_text_that_mqtt_cannot_carry_is_refused(
    connect: Connect, name: str, text: Any
) -> None:
    queue = connect().queue(name)
    with pytest.raises(ValueError, match="the user property 'mine' "):
        await queue.publish(b"", headers={"mine": text})


async def test_wrong_topics_leave_room_for_others(connect: Connect, name: str) -> None:
    queue = connect().queue(name)
    for _ in range(1001):  # as many as can wait for PUBACK, and one more
        with pytest.raises(ValueError, match="topic"):
            await queue.publish(b"", topic="x" * 65_536)
    await queue.publish(b"1")
