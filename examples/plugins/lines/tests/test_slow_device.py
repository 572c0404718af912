"""Test a device that does not read. The gateway stops taking messages from the broker for this device, and lines from
the device.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hookmq.plugin import (
    BrokerHandle,
    ClientRequest,
    Delivery,
    DisconnectReason,
    EndedBy,
    Message,
    ReasonCode,
)
from hookmq_example_lines.connection import LineConnection


class Wire(asyncio.Transport):
    """A socket whose buffer is full while `full` is set. It reports this as asyncio does with a limit of 0."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.protocol: LineConnection | None = None
        self.lines: list[str] = []
        self.full = False
        self.reading = True
        self.limit: int | None = None
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limit = high

    def write(self, data: Any) -> None:
        self.lines += bytes(data).decode().splitlines()
        if self.full and self.protocol is not None:
            protocol, self.protocol = self.protocol, None  # once, until it is written
            protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Client:
    """A plugin client that accepts every publish at once."""

    connected = True
    paused = False
    on_messages: Callable[[list[Delivery]], None]
    on_end: Callable[[DisconnectReason], None]

    def __init__(self) -> None:
        self.published: list[bytes] = []
        self.acknowledged: list[bytes] = []

    async def connect(self, request: ClientRequest) -> "Client":
        return self

    def publish_later(
        self, topic: str, payload: bytes, qos: int, done: Callable[[ReasonCode], None]
    ) -> None:
        self.published.append(payload)
        done(ReasonCode.SUCCESS)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def deliver(self, payload: bytes) -> None:
        def acknowledge(code: ReasonCode = ReasonCode.SUCCESS) -> None:
            self.acknowledged.append(payload)

        delivery = SimpleNamespace(message=Message("m", payload, 1), acknowledge=acknowledge)
        self.on_messages([cast(Delivery, delivery)])


Slow = tuple[Client, Wire, LineConnection]


@pytest.fixture
async def slow() -> Slow:
    """Return a connected device that has stopped reading."""
    client, wire = Client(), Wire()
    connection = LineConnection(cast(BrokerHandle, client), "", lambda one: True, lambda one: None)
    wire.protocol = connection
    connection.connection_made(wire)
    connection.data_received(b"CONNECT m7\n")
    for _ in range(3):
        await asyncio.sleep(0)
    assert wire.lines == ["OK"]
    wire.full = True
    return client, wire, connection


async def test_a_message_is_acknowledged_once_it_is_written(slow: Slow) -> None:
    client, wire, connection = slow
    assert wire.limit == 0, "the smallest rest is reported"
    client.deliver(b"1")
    assert (client.paused, client.acknowledged) == (True, [])
    client.deliver(b"2")  # was on its way
    assert client.acknowledged == []
    connection.resume_writing()
    assert (client.paused, client.acknowledged) == (False, [b"1", b"2"])


async def test_no_line_is_taken_while_the_answers_are_not_read(slow: Slow) -> None:
    client, wire, connection = slow
    connection.data_received(b"PUB a 1\nPUB a 2\nPUB a 3\n")
    assert (client.published, wire.reading) == ([b"1"], False)
    connection.resume_writing()
    assert (client.published, wire.reading) == ([b"1", b"2", b"3"], True)
    assert wire.lines == ["OK"] * 4


async def test_the_connection_of_an_ended_client_does_not_wait_for_the_device(slow: Slow) -> None:
    client, wire, _ = slow
    client.deliver(b"1")
    client.on_end(DisconnectReason(ReasonCode.SESSION_TAKEN_OVER, EndedBy.TAKEOVER, False, ""))
    assert wire.aborted
