"""A load client for MQTT 3.1.1. Many run in one event loop, and each can be configured to misbehave."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

import mqttbytes as m

OnMessage = Callable[[bytes, bytes, int], None]
"""A function of topic, payload and QoS."""


class Client(asyncio.Protocol):
    """One connection. It acknowledges messages unless `acknowledges` is False; `pause` stops reading the socket."""

    def __init__(self, on_message: OnMessage | None = None, acknowledges: bool = True) -> None:
        self.on_message = on_message
        self.acknowledges = acknowledges
        self.received = 0
        self.acknowledged = 0
        """PUBACKs that came."""
        self.closed = asyncio.Event()
        self.told = asyncio.Event()
        """Set whenever something came or ended."""
        self.code: int | None = None
        """CONNACK's return code."""
        self.present = False
        self.transport: asyncio.Transport | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._in = bytearray()
        self._numbers = itertools.cycle(range(1, 60_000))
        self._granted: dict[int, bytes] = {}
        self._answers: deque[bytes] = deque()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport. Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake everything that waits for the connection. Called by asyncio."""
        self.closed.set()
        self.told.set()
        self.writable.set()

    def pause_writing(self) -> None:
        """Stop writing. Called by asyncio."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Continue writing. Called by asyncio."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Process received bytes. Called by asyncio."""
        self._in += data
        for first, body in m.take(self._in):
            self._packet(first, body)
        if self._answers:
            self.write(b"".join(self._answers))
            self._answers.clear()
        self.told.set()

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 3:
            self.received += 1
            qos = first >> 1 & 3
            size = int.from_bytes(body[:2], "big")
            rest = 2 + size
            if qos:
                if self.acknowledges:
                    self._answers.append(b"\x40\x02" + body[rest : rest + 2])
                rest += 2
            if self.on_message is not None:
                self.on_message(body[2 : 2 + size], body[rest:], qos)
        elif kind == 4:
            self.acknowledged += 1
        elif kind == 2:
            self.present, self.code = bool(body[0] & 1), body[1]
        elif kind in (9, 11):
            self._granted[int.from_bytes(body[:2], "big")] = body[2:]

    # what it does

    def write(self, data: bytes) -> None:
        """Send bytes if the connection is open."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    async def until(self, wanted: Callable[[], bool], seconds: float = 60) -> bool:
        """Wait until `wanted()` is true. Return False if the connection ends first or `seconds` pass."""
        try:
            async with asyncio.timeout(seconds):
                while not wanted():
                    if self.closed.is_set():
                        return wanted()
                    self.told.clear()
                    await self.told.wait()
        except TimeoutError:
            return False
        return True

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Subscribe and assert that every filter is granted."""
        number = next(self._numbers)
        self.write(m.subscribe(number, *((name, qos) for name in filters), level=4))
        assert await self.until(lambda: number in self._granted), "no SUBACK"
        codes = self._granted.pop(number)
        assert all(code < 0x80 for code in codes), codes

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Send one message without waiting."""
        self.write(m.publish(topic, payload, qos, next(self._numbers), level=4, retain=retain))

    def leave(self) -> None:
        """Send DISCONNECT and close the connection."""
        self.write(m.disconnect())
        if self.transport is not None:
            self.transport.close()

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        if self.transport is not None:
            self.transport.abort()


async def connect(
    port: int,
    name: str,
    on_message: OnMessage | None = None,
    *,
    clean: bool = True,
    will: tuple[str, bytes] | None = None,
    will_retain: bool = False,
    acknowledges: bool = True,
    keep_alive: int = 0,
) -> Client:
    """Connect a client. Raise ConnectionError if the broker refuses it."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(
        lambda: Client(on_message, acknowledges), "127.0.0.1", port
    )
    client.write(
        m.connect(
            name,
            level=4,
            clean=clean,
            will=will,
            will_qos=1 if will else 0,
            will_retain=will_retain,
            keep_alive=keep_alive,
        )
    )
    if not await client.until(lambda: client.code is not None) or client.code:
        client.drop()
        raise ConnectionError(f"{name}: not accepted, {client.code}")
    return client
