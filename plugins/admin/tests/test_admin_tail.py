"""Test the live tail: its events, sampling and limits, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_site import DOCUMENT, Site, validate
from hookmq_testing import AsyncioClient

Event = tuple[str, Any]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a broker with low limits for live tails."""
    made = Site(tmp_path_factory.mktemp("tail"), max_tails=2, tail_rate=5, tail_timeout="0.2s")
    yield made
    made.close()


class Reader:
    """A client that reads a live tail."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def event(self) -> Event:
        """Return the next event, skipping comments."""
        name, data = "", ""
        async with asyncio.timeout(60):
            async for line in self.response.content:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text[7:]
                elif text.startswith("data: "):
                    data = text[6:]
                elif not text and name:
                    return name, json.loads(data)
        raise EOFError


@asynccontextmanager
async def tailing(site: Site, query: str, role: str = "operator") -> AsyncIterator[Reader]:
    headers = {"Authorization": f"Bearer {site.tokens[role]}", "X-Forwarded-For": "192.0.2.1"}
    async with site.http.get(f"{site.url}/api/v1/tail?{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        reader = Reader(response)
        assert await response.content.readline() == b": tail\n"
        yield reader


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true. Check it in every turn of the event loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


def connected(site: Site) -> int:
    """Return the number of plugin clients that serve live tails."""
    return sum(name.startswith("$admin/tail/") for name in site.broker.state.sessions)


def test_messages_arrive_with_their_content(site: Site) -> None:
    publisher = site.client("publisher")

    async def run() -> None:
        await publisher.publish("t/kept", b"before", 1, True, expect=None)
        async with tailing(site, "filter=t/%23&retained=true") as reader:
            name, data = await reader.event()
            assert (name, data["topic"], data["retain"]) == ("message", "t/kept", True)
            validate(data, DOCUMENT["components"]["schemas"]["Message"])
            await publisher.publish("t/1", b"x" * 600, 1, content_type="x/y")
            name, data = await reader.event()
            assert (data["sender"], data["payload"]["truncated"]) == ("publisher", True)
            assert data["properties"] == {"content_type": "x/y"}
            assert connected(site) == 1
        await until(lambda: connected(site) == 0)

    site.run(run())


def test_a_tail_cannot_take_messages_from_a_shared_subscription(site: Site) -> None:
    async def run() -> int:
        headers = {"Authorization": f"Bearer {site.tokens['operator']}"}
        url = f"{site.url}/api/v1/tail?filter=$share/workers/%23"
        async with site.http.get(url, headers=headers) as response:
            return response.status

    assert site.run(run()) == 400


def test_a_filter_and_a_role_are_needed(site: Site) -> None:
    assert site.ask("GET", "/tail?filter=%23", "viewer").status == 403
    answer = site.ask("GET", "/tail?filter=a/%23/b", "operator")
    assert (answer.status, answer.json["field"]) == (400, "filter")


def test_a_tail_ends_with_its_token(site: Site) -> None:
    body = {"name": "tailer", "role": "operator"}
    made = site.ask("POST", "/tokens", json=body).json
    site.tokens["tailer"] = made["token"]

    async def run() -> Event:
        async with tailing(site, "filter=%23", "tailer") as reader:
            plugin: Any = site.admin.plugin
            await plugin.services.tokens.revoke(made["id"])
            return await reader.event()

    assert site.run(run()) == ("end", {"reason": "the token is not valid any more"})


def test_a_tail_ends_with_its_token_while_messages_arrive(site: Site) -> None:
    body = {"name": "listening", "role": "operator"}
    made = site.ask("POST", "/tokens", json=body).json
    site.tokens["listening"] = made["token"]
    publisher = site.client("busy")

    async def publish() -> None:
        while True:
            await publisher.publish("busy", b"", 1, expect=None)

    async def run() -> set[str]:
        names: list[str] = []
        async with tailing(site, "filter=busy", "listening") as reader:
            publishing = asyncio.create_task(publish())
            await reader.event()
            plugin: Any = site.admin.plugin
            await plugin.services.tokens.revoke(made["id"])
            try:
                while "end" not in names and len(names) < 1000:  # 100 messages per second
                    names.append((await reader.event())[0])
            finally:
                publishing.cancel()
        return set(names)

    assert "end" in site.run(run())


def test_a_tail_ends_when_its_client_is_disconnected(site: Site) -> None:
    async def run() -> Event:
        async with tailing(site, "filter=%23") as reader:
            (name,) = [n for n in site.broker.state.sessions if n.startswith("$admin/tail/")]
            site.broker.state.sessions[name].connection.disconnect(0x98, "kicked")  # type: ignore[union-attr, arg-type]
            return await reader.event()

    name, data = site.run(run())
    assert name == "end"
    assert data["reason"]


def test_messages_above_the_rate_are_skipped_and_counted(small: Site) -> None:
    publisher = small.client("publisher")

    async def run() -> tuple[int, int]:
        shown = skipped = 0
        async with tailing(small, "filter=%23&rate=1000") as reader:
            for number in range(50):
                publisher.send_publish("m", b"%d" % number)
            while shown + skipped < 50:
                name, data = await reader.event()
                if name == "message":
                    shown += 1
                else:
                    skipped += data["messages"]
        return shown, skipped

    shown, skipped = small.run(run())
    assert shown + skipped == 50
    assert 5 <= shown < 50


def test_only_some_tails_at_the_same_time(small: Site) -> None:
    async def run() -> int:
        async with tailing(small, "filter=a"), tailing(small, "filter=b"):
            headers = {"Authorization": f"Bearer {small.tokens['operator']}"}
            async with small.http.get(
                f"{small.url}/api/v1/tail?filter=c", headers=headers
            ) as third:
                return third.status

    assert small.run(run()) == 503


def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    site = Site(tmp_path, tail_rate=1000, tail_timeout="0.1s")
    publisher = site.client("publisher")

    def dropped() -> bool:
        return any(event == "admin.tail_dropped" for _, event, _ in site.logs)

    async def run() -> None:
        host, _, port = site.server.addresses()["http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        token = site.tokens["operator"]
        writer.write(
            b"GET /plugins/admin/api/v1/tail?filter=%23&rate=1000 HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
        assert b"200" in await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await flood(publisher, dropped)
        await until(lambda: connected(site) == 0)
        writer.transport.abort()

    site.run(run())
    site.close()


async def flood(publisher: AsyncioClient, done: Callable[[], bool]) -> None:
    """Publish until `done()` is true."""
    while not done():
        await publisher.publish("flood", bytes(500), 1, expect=None)
