"""In-memory connections to a harness's broker, for `byteclient.ByteClient`."""

import io
from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from hookmq.broker import PacketReader
from hookmq.model.client import Peer, Scope
from hookmq_testing import Harness, MemoryWire

LEVELS = pytest.mark.parametrize("level", [4, 5])
"""Runs a test with MQTT 3.1.1 and with MQTT 5.0."""


class MemoryTransport:
    """A connection to the broker in `harness`. `wait` advances the clock by `patience` seconds."""

    def __init__(self, harness: Harness, scope: Scope | None = None, patience: float = 0.0) -> None:
        self._harness = harness
        self._patience = patience
        self._arrived = b""
        self.wire = MemoryWire(harness.clock, self._took, lambda: None)
        peer = Peer("192.0.2.7", 1024, "memory")
        self.connection: PacketReader = harness.broker.accept(self.wire, peer, scope or Scope())
        self.wire.connection = self.connection

    def _took(self, data: bytes) -> None:
        self._arrived += data

    @property
    def closed(self) -> bool:
        """Implement `byteclient.Transport.closed`."""
        return self.wire.closed

    @property
    def open(self) -> bool:
        """Implement `byteclient.Transport.open`."""
        return not self.wire.closed and not self.wire.closing

    def send(self, data: bytes) -> None:
        """Implement `byteclient.Transport.send`."""
        self.wire.send(data)
        self._harness.settle()

    def offer(self, data: bytes) -> None:
        """Implement `byteclient.Transport.offer`. The broker takes everything."""
        self.send(data)

    def poll(self) -> bytes:
        """Implement `byteclient.Transport.poll`. The broker finishes its work first."""
        self._harness.settle()
        data, self._arrived = self._arrived, b""
        return data

    def wait(self) -> bytes:
        """Implement `byteclient.Transport.wait`."""
        if self._patience:
            self._harness.advance(self._patience)
        return self.poll()

    def close(self) -> None:
        """Implement `byteclient.Transport.close`."""
        self.wire.lose()
        self._harness.settle()

    def fileno(self) -> int:
        """Implement `byteclient.Transport.fileno`."""
        raise io.UnsupportedOperation("an in-memory connection has no descriptor")


def in_memory(harness: Harness, level: int = 5, scope: Scope | None = None) -> ByteClient:
    """Connect to a harness's broker without sending anything."""
    return ByteClient(MemoryTransport(harness, scope), level)


def join(
    harness: Harness,
    client_id: m.Field = "c",
    level: int = 5,
    *,
    present: bool = False,
    scope: Scope | None = None,
    **options: Any,
) -> ByteClient:
    """Connect a client and assert that it is accepted. `options` are those of `mqttbytes.connect`."""
    return in_memory(harness, level, scope).join(client_id, present=present, **options)
