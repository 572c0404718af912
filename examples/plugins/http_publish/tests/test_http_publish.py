"""Test the HTTP gateway with real sockets: response statuses, load, and clients that stay connected."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hookmq_example_http_publish import HttpPublishPlugin
from hookmq_testing import AsyncioClient
from hookmq_testing.contracts import PluginContract
from serving import Served, serving

CONFIG = """
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: deny}
broker: {max_packet_size: 10000}
plugins:
  - use: acl_file
    config: {path: acl.yaml}
  - use: example_http_publish
    config: {max_clients: 2}
"""
RULES = """
rules:
  - allow: [publish, subscribe]
    topic: open/#
  - allow: publish
    topic: of/%u/#
"""


class TestContract(PluginContract):
    kind = HttpPublishPlugin
    use = "example_http_publish"
    configs = ({}, {"max_clients": 3})
    bad_configs = ({"max_clients": 0}, {"clients": 1})


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    (tmp_path / "hookmq.yaml").write_text(CONFIG)
    (tmp_path / "acl.yaml").write_text(RULES)
    with serving("-c", str(tmp_path / "hookmq.yaml"), cwd=tmp_path) as served:
        yield served


@pytest.fixture
async def http(broker: Served) -> AsyncIterator[aiohttp.ClientSession]:
    base = f"http://127.0.0.1:{broker.ports['http']}"
    async with aiohttp.ClientSession(base) as session:
        yield session


async def post(
    http: aiohttp.ClientSession, topic: str, body: bytes, user: str = "", **query: str
) -> tuple[int, dict[str, Any]]:
    headers = {"MQTT-Username": user, "MQTT-Password": "secret"} if user else {}
    url = "/plugins/example_http_publish/publish"
    async with http.post(
        url, params={"topic": topic, **query}, data=body, headers=headers
    ) as answer:
        return answer.status, await answer.json()


async def test_a_request_is_a_publish(broker: Served, http: aiohttp.ClientSession) -> None:
    watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
    await watcher.subscribe("open/#", 2)
    assert await post(http, "open/a", b"hello", qos="2") == (200, {"code": 0, "matched": True})
    message = await watcher.message()
    assert (message.topic, message.payload, message.qos) == ("open/a", b"hello", 2)
    assert await post(http, "open/kept", b"x", retain="1", qos="0") == (
        200, {"code": 0, "matched": True},
    )  # fmt: skip
    late = await AsyncioClient("late").connect(broker.ports["tcp"])
    await late.subscribe("open/kept")
    assert (await late.message()).retain
    watcher.disconnect()
    late.disconnect()


async def test_statuses(http: aiohttp.ClientSession) -> None:
    status, found = await post(http, "of/bob/x", b"", "alice")
    assert (status, found["code"]) == (403, 0x87)
    assert await post(http, "of/alice/x", b"", "alice") == (200, {"code": 16, "matched": False})
    status, found = await post(http, "open/#", b"")
    assert (status, "wildcard" in found["error"]) == (400, True)
    status, found = await post(http, "open/a", b"", qos="7")
    assert (status, found["error"]) == (400, "qos is '7', not 0, 1 or 2")
    status, found = await post(http, "open/a", bytes(20_000))
    assert (status, "exceeds 10000" in found["error"]) == (400, True)


@pytest.mark.slow
async def test_thousands_of_requests_of_more_users_than_clients(
    broker: Served, http: aiohttp.ClientSession
) -> None:
    """Requests are served even if there are more users than clients. If a user's client was disconnected to make room,
    the user's next request reconnects it.
    """
    count, users = 500, 5
    watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
    await watcher.subscribe("open/#", 1)

    async def run(user: int) -> None:
        for number in range(count):
            answer = await post(http, f"open/{user}", b"%d" % number, f"u{user}")
            assert answer == (200, {"code": 0, "matched": True})

    await asyncio.gather(*(run(user) for user in range(users)))
    seen: dict[str, list[int]] = {}
    for _ in range(count * users):
        message = await watcher.message()
        seen.setdefault(message.topic, []).append(int(message.payload))
    assert all(numbers == list(range(count)) for numbers in seen.values())
    watcher.disconnect()
