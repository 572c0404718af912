"""Clients for load tests. They use MQTT 3.1.1 and do not store the messages that they receive."""

from collections.abc import Callable
from typing import Any

from hookmq.mqtt.packets import Publish
from hookmq_testing import AsyncioClient


def _forget(message: Publish) -> None:
    pass


async def connect(
    port: int,
    name: str,
    on_message: Callable[[Publish], None] = _forget,
    *,
    clean: bool = True,
    version: int = 4,
    **options: Any,
) -> AsyncioClient:
    """Connect a client. `options` are those of `AsyncioClient`."""
    client = AsyncioClient(name, version, clean, on_message=on_message, **options)
    return await client.connect(port)


async def subscribe(client: AsyncioClient, *filters: str, qos: int = 1) -> None:
    """Subscribe and assert that the broker grants each filter."""
    codes = (await client.subscribe(filters, qos)).codes
    assert all(code < 0x80 for code in codes), codes
