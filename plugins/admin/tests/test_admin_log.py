"""Test the log through the API and on the command line: its level, its events, roles, the audit log, and limits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_site import Site
from hookmq.plugin import LogEvent
from hookmq_admin.event_stream import MAX_BUFFER
from hookmq_admin.log_cli import line_of
from hookmq_admin.logs import event_fields
from hookmq_testing import run_command

Event = tuple[str, Any]


@pytest.fixture(autouse=True)
def info(site: Site) -> None:
    """Start each test at the info level."""
    site.thread.call(lambda: site.event_log.set_level("info"))


async def next_event(response: aiohttp.ClientResponse) -> Event:
    """Return the next event, skipping comments."""
    name, data = "", ""
    async with asyncio.timeout(60):
        async for line in response.content:
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                data = text[6:]
            elif not text and name:
                return name, json.loads(data)
    raise EOFError


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true. Check it in every turn of the event loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


@asynccontextmanager
async def tailing(
    site: Site, query: str = "", role: str = "operator"
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Authorization": f"Bearer {site.tokens[role]}", "X-Forwarded-For": "192.0.2.1"}
    async with site.http.get(f"{site.url}/api/v1/log/tail?{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert await response.content.readline() == b": log\n"
        yield response


def test_the_level_is_shown_and_changed_by_an_admin(site: Site) -> None:
    assert site.ask("GET", "/log/level", "viewer").json == {"level": "info", "configured": "info"}
    refused = site.ask("PUT", "/log/level", "operator", json={"level": "debug"})
    assert refused.status == 403
    changed = site.ask("PUT", "/log/level", json={"level": "debug"})
    assert changed.json == {"level": "debug", "configured": "info"}
    assert site.event_log.levels().current == "debug"
    entry = site.audit()[0]
    assert (entry["action"], entry["arguments"]) == ("setLogLevel", {"level": "debug"})
    wrong = site.ask("PUT", "/log/level", json={"level": "all"})
    assert (wrong.status, wrong.json["field"]) == (400, "level")
    assert any(event == "broker.log_level_set" for _, event, _ in site.logs)


def test_events_are_filtered_and_the_tail_is_audited(site: Site) -> None:
    async def run() -> list[Event]:
        site.log("info", "client.before", number=1)
        async with tailing(site, "level=info&event=client.&recent=1") as response:
            site.log("info", "node.other")
            site.log("warning", "client.after", password="s3cret", odd={1: b"x"})
            return [await next_event(response), await next_event(response)]

    (first, before), (second, after) = site.run(run())
    assert (first, second) == ("log", "log")
    assert (before["level"], before["event"], before["fields"]) == (
        "info", "client.before", {"number": 1},
    )  # fmt: skip
    assert after["fields"] == {"odd": {"1": "<1 bytes>"}}
    assert site.audit()[0]["action"] == "tailLog"
    assert site.ask("GET", "/log/tail", "viewer").status == 403


def test_only_events_of_the_level(site: Site) -> None:
    async def run() -> Event:
        async with tailing(site, "level=warning&event=a.") as response:
            site.log("info", "a.quiet")
            site.log("error", "a.loud")
            return await next_event(response)

    assert site.run(run())[1]["event"] == "a.loud"


def test_nobody_follows_after_the_tail(site: Site) -> None:
    async def run() -> None:
        async with tailing(site):
            assert len(site.event_log._recorder.followers) == 1
        await until(lambda: not site.event_log._recorder.followers)

    site.run(run())


def test_a_tail_ends_with_its_token(site: Site) -> None:
    made = site.ask("POST", "/tokens", json={"name": "logger", "role": "operator"}).json
    site.tokens["logger"] = made["token"]

    async def run() -> Event:
        async with tailing(site, "event=none.", "logger") as response:
            plugin: Any = site.admin.plugin
            await plugin.services.tokens.revoke(made["id"])
            return await next_event(response)

    assert site.run(run()) == ("end", {"reason": "the token is not valid any more"})


def test_a_burst_above_the_buffers_is_skipped_and_counted(site: Site) -> None:
    sent = 3000

    async def run() -> tuple[int, int]:
        seen = skipped = 0
        async with tailing(site, "event=burst.") as response:
            for number in range(sent):  # in one turn of the event loop
                site.log("info", "burst.one", text="x" * (MAX_BUFFER // 1000), number=number)
            while seen + skipped < sent:
                name, data = await next_event(response)
                seen += name == "log"
                skipped += data["events"] if name == "skipped" else 0
        return seen, skipped

    seen, skipped = site.run(run())
    assert (seen + skipped, skipped > 0, seen > 0) == (sent, True, True)


def test_the_number_of_tails_is_limited(tmp_path: Path) -> None:
    small = Site(tmp_path, max_tails=1)

    async def run() -> int:
        async with tailing(small):
            headers = {"Authorization": f"Bearer {small.tokens['operator']}"}
            async with small.http.get(f"{small.url}/api/v1/log/tail", headers=headers) as second:
                return second.status

    assert small.run(run()) == 503
    small.broker.event_log = None
    assert small.ask("GET", "/log/level").status == 409
    assert small.ask("PUT", "/log/level", json={"level": "info"}).status == 409
    assert small.ask("GET", "/log/tail").status == 409
    small.close()


def test_the_commands(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    assert run_command(["admin", "log", "level", "warning"]) == 0
    assert run_command(["admin", "log", "level"]) == 0
    assert capsys.readouterr().out == "level       warning\nconfigured  info\n" * 2
    site.log("warning", "shown.one", client_id="a\x1b[2J")
    words = ["admin", "log", "tail", "--event", "shown.", "--level", "info", "-C", "1"]
    assert run_command(words) == 0
    assert capsys.readouterr().out[13:] == "warning shown.one client_id=a\\x1b[2J\n"
    assert run_command([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["type"], found["event"], found["level"]) == ("log", "shown.one", "warning")


def test_an_event_is_one_line() -> None:
    event = event_fields(LogEvent(0.5, "error", "a.b\n", {"x\n": "y\n", "z": {"k": None}}))
    assert line_of(event)[13:] == "error   a.b\\x0a x\\x0a=y\\x0a z=k=-"
    assert line_of(event, color=True).startswith("\x1b[31m")
    assert line_of({**event, "time": 59.9999})[6:12] == "59.999"
