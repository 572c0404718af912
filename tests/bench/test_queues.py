"""Test that a run of bench.queues counts only if every published message was consumed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import TypeVar

import pytest

from bench import (
    queue_amqp,
    queue_client,
    queue_load,
    queue_mqtt,
    queue_nats,
    queue_redis,
    queue_servers,
    queues,
)
from bench.durable_load import Void
from bench.queue_client import SIZE, TAIL

T = TypeVar("T")


def made(kind: type[T], **fields: object) -> T:
    """Return a client object without a connection."""
    client = kind.__new__(kind)
    for name, value in fields.items():
        setattr(client, name, value)
    return client


def payload(number: int) -> bytes:
    return struct.pack(">Q", number) + TAIL


def mqtt(number: int) -> bytes:
    body = b"\0\x0c$queue/bench" + struct.pack(">H", number) + b"\0" + payload(number)
    return bytes((0x32, len(body) & 127 | 128, len(body) >> 7)) + body


def amqp(number: int) -> bytes:
    method = struct.pack(">HH", 60, 60) + b"\1c" + struct.pack(">Q", number) + b"\0\0\5bench"
    header = struct.pack(">HHQHB", 60, 0, SIZE, 0x1000, 2)
    frames = ((1, method), (2, header), (3, payload(number)))
    return b"".join(queue_amqp.amqp_frame(kind, 1, body) for kind, body in frames)


def nats(number: int) -> bytes:
    return b"MSG bench 1 $JS.ACK.%d 256\r\n" % number + payload(number) + b"\r\n"


def redis(numbers: list[int]) -> bytes:
    head = b"*1\r\n*2\r\n$5\r\nbench\r\n*%d\r\n" % len(numbers)
    return head + b"".join(
        b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nd\r\n$256\r\n" % number + payload(number) + b"\r\n"
        for number in numbers
    )


def amqp_consumer() -> queue_amqp.AmqpConsumer:
    return made(queue_amqp.AmqpConsumer, _left=b"", _form=queue_amqp.delivery_form())


CONSUMERS: dict[str, tuple[Callable[[], queue_client.Consumer], bytes, bytes]] = {
    "mqtt": (
        lambda: made(queue_mqtt.MqttConsumer, _left=b""),
        b"\x90\4\0\1\0\1" + mqtt(1) + mqtt(2),
        b"\x40\2\0\1\x40\2\0\2",
    ),
    "amqp": (
        amqp_consumer,
        amqp(1) + amqp(2),
        b"".join(
            queue_amqp.amqp_frame(1, 1, struct.pack(">HHQB", 60, 80, number, 0))
            for number in (1, 2)
        ),
    ),
    "nats": (
        lambda: made(queue_nats.NatsConsumer, _left=b"", _prefetch=100, _asked=100),
        nats(1) + b"PING\r\n" + nats(2),
        b"PUB $JS.ACK.1 0\r\n\r\nPONG\r\nPUB $JS.ACK.2 0\r\n\r\n",
    ),
    "redis": (
        lambda: made(queue_redis.RedisConsumer, _left=b"", _ask=b"next"),
        b":5\r\n" + redis([1, 2]),
        b"*5\r\n$4\r\nXACK\r\n$5\r\nbench\r\n$3\r\nall\r\n$3\r\n1-0\r\n$3\r\n2-0\r\nnext",
    ),
}


@pytest.mark.parametrize("name", CONSUMERS)
@pytest.mark.parametrize("size", [1, 7, 300, 10_000])
def test_a_consumer_acknowledges_each_message_however_it_arrives(name: str, size: int) -> None:
    make, data, answers = CONSUMERS[name]
    consumer = make()
    numbers: list[int] = []
    sent = b""
    for start in range(0, len(data), size):
        found, answer = consumer.read(data[start : start + size])
        numbers += found
        sent += answer
    assert numbers == [1, 2]
    assert sent == answers


PRODUCERS: dict[str, tuple[Callable[[], queue_client.Producer], bytes, bytes]] = {
    "mqtt": (
        lambda: made(queue_mqtt.MqttProducer, _left=b"", confirmed=0),
        b"\x40\2\0\1\x40\2\0\2\x40\2\0\3",
        b"\x40\3\0\1\x97",
    ),
    "amqp": (
        lambda: made(queue_amqp.AmqpProducer, _left=b"", _low=0, _above=set()),
        b"".join(
            queue_amqp.amqp_frame(1, 1, struct.pack(">HHQB", 60, 80, tag, multiple))
            for tag, multiple in ((3, 0), (2, 1))
        ),
        queue_amqp.amqp_frame(1, 1, struct.pack(">HHQB", 60, 120, 1, 0)),
    ),
    "nats": (
        lambda: made(queue_nats.NatsProducer, _left=b"", confirmed=0),
        b"".join(b'MSG I.p 1 26\r\n{"stream":"bench","seq":%d}\r\n' % n for n in (1, 2, 3)),
        b'MSG I.p 1 30\r\n{"error":{"code":503},"seq":0}\r\n',
    ),
    "redis": (
        lambda: made(queue_redis.RedisProducer, _left=b"", confirmed=0),
        b"$3\r\n1-0\r\n$3\r\n2-0\r\n$3\r\n3-0\r\n",
        b"-ERR no\r\n",
    ),
}


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("size", [1, 5, 13, 10_000])
def test_a_producer_counts_each_confirmation_however_it_arrives(name: str, size: int) -> None:
    make, data, _ = PRODUCERS[name]
    producer = make()
    for start in range(0, len(data), size):
        producer.read(data[start : start + size])
    assert producer.confirmed == 3


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_refused_message_makes_a_run_void(name: str) -> None:
    make, _, refusal = PRODUCERS[name]
    with pytest.raises(Void):
        make().read(refusal)


def test_a_message_that_nobody_consumed_makes_a_run_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_load, "GAP", 0.0)
    made = queue_load.Bench(queue_servers.SERVERS[0], 0, queue_load.Load())
    here, there = socket.socketpair()
    with here, there:
        producer = PRODUCERS["mqtt"][0]()
        producer.read(b"\x40\2\0\1\x40\2\0\2")
        made.producers, made.sent, made.seen = [producer], [2], [bytearray(2)]
        made._selector.register(here, 1, (0, None))
        there.sendall(b"\x40\2\0\2")
        made._note([1, 1])
        assert made.again == 1
        with pytest.raises(Void, match="missing"):
            made.drain()
        with pytest.raises(Void, match="nobody published"):
            made._note([2])


@pytest.mark.parametrize(
    "server", queue_servers.SERVERS, ids=lambda one: f"{one.name}-{one.durability}"
)
@pytest.mark.slow
def test_every_server_can_be_measured(server: queue_servers.Server) -> None:
    if server.program() is None:
        pytest.skip(f"{server.name} is not installed")
    load = queue_load.Load(0.2, producers=2, consumers=2, prefetch=10, window=10)
    with queue_servers.folder() as where, queue_servers.running(server, where, None) as broker:
        run = queue_load.measure(server, broker, load)
    assert run.messages > 0
    assert run.cpu > 0
    line = queues.row(server, [run, run], run.cpu)
    assert line.count("|") == queues.HEADING.splitlines()[0].count("|")
