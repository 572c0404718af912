"""Test traces through the API and on the command line: events, roles, the audit log, and how they end."""

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from admin_site import Site
from hookmq.plugin import TraceEvent, TraceKind
from hookmq_admin import trace_cli
from hookmq_admin.event_stream import EventStream
from hookmq_admin.trace_cli import line_of
from hookmq_admin.tracing import pump
from hookmq_testing import run_command

Event = tuple[str, Any]


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


@asynccontextmanager
async def tracing(
    site: Site, query: str, role: str = "operator"
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Authorization": f"Bearer {site.tokens[role]}", "X-Forwarded-For": "192.0.2.1"}
    async with site.http.get(f"{site.url}/api/v1/trace?{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        assert await response.content.readline() == b": trace\n"
        yield response


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` is true. Check it in every turn of the event loop."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            turned = loop.create_future()
            loop.call_soon(turned.set_result, None)
            await turned


def running(site: Site) -> bool:
    return site.broker.state.on_accept is not None


def test_packets_calls_and_routes_are_streamed_and_audited(site: Site) -> None:
    lamp = site.client("lamp", username="ann")

    async def run() -> list[Any]:
        found: list[Any] = []
        async with tracing(site, "client_id=lamp&payloads=true") as response:
            await lamp.publish("secret/1", b"on", 1, expect=0x87)
            while not found or found[-1]["name"] != "PUBACK":
                name, data = await next_event(response)
                assert name == "trace"
                found.append(data)
        await until(lambda: not running(site))
        return found

    found = site.run(run())
    assert [(one["kind"], one["name"]) for one in found] == [
        ("received", "PUBLISH"), ("hook", "authorize"), ("hook", "authorize"), ("drop", "denied"),
        ("event", "on_denied"), ("sent", "PUBACK"),
    ]  # fmt: skip
    assert found[0]["fields"]["payload"] == {"text": "on", "truncated": False}
    assert found[1]["fields"]["verdict"] == "abstain"
    assert found[2]["fields"]["verdict"] == "deny"
    assert found[2]["fields"]["reason"] == "not for ann"
    assert found[2]["fields"]["microseconds"] >= 0
    entry = site.audit()[0]
    assert (entry["action"], entry["status"], entry["name"]) == ("trace", 200, "operator")
    assert entry["arguments"]["client_id"] == "lamp"
    assert [one["action"] for one in site.audit()[:2]].count("trace") == 1


def test_a_trace_ends_with_its_token(site: Site) -> None:
    made = site.ask("POST", "/tokens", json={"name": "tracer", "role": "operator"}).json
    site.tokens["tracer"] = made["token"]

    async def run() -> Event:
        async with tracing(site, "filter=%23", "tracer") as response:
            plugin: Any = site.admin.plugin
            await plugin.services.tokens.revoke(made["id"])
            return await next_event(response)

    assert site.run(run()) == ("end", {"reason": "the token is not valid any more"})


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("", 400, "is required"), ("seconds=3601&client_id=a", 400, "seconds"), ("filter=a/%23/b", 400, ""),
        ("client_id=a&rate=0", 400, ""),
    ],
)  # fmt: skip
def test_wrong_requests(site: Site, query: str, status: int, detail: str) -> None:
    answer = site.ask("GET", f"/trace?{query}", "operator")
    assert answer.status == status
    assert detail in answer.text
    assert not running(site)


def test_a_viewer_must_not_trace(site: Site) -> None:
    assert site.ask("GET", "/trace?client_id=a", "viewer").status == 403


def test_the_number_of_traces_is_limited(site: Site) -> None:
    async def run() -> int:
        async with asyncio.TaskGroup(), _many(site, 8):
            headers = {"Authorization": f"Bearer {site.tokens['operator']}"}
            url = f"{site.url}/api/v1/trace?client_id=a"
            async with site.http.get(url, headers=headers) as response:
                return response.status

    assert site.run(run()) == 503


@asynccontextmanager
async def _many(site: Site, count: int) -> AsyncIterator[None]:
    if not count:
        yield
        return
    async with tracing(site, "client_id=a"), _many(site, count - 1):
        yield


def test_the_command(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["operator"])
    bulb = site.client("bulb")

    async def publish() -> None:
        await until(lambda: running(site))
        await bulb.publish("light/1", b"", 1, expect=None)
        start: Any = site.broker.state.start_trace
        for trace in tuple(start.__self__._running):
            trace.stop("the time is over")

    publishing = threading.Thread(target=lambda: site.run(publish()))
    publishing.start()
    file = tmp_path / "trace.jsonl"
    words = ["admin", "trace", "--client", "bulb", "--for", "5m", "--output", str(file)]
    assert run_command(words) == 0
    publishing.join(60)
    printed = capsys.readouterr()
    assert " bulb > PUBLISH light/1 qos=1 " in printed.out
    assert " bulb ? authorize doors: abstain in " in printed.out
    assert printed.err.startswith("# ready\n")
    assert "# end: reason=the time is over" in printed.err
    assert "\x1b" not in printed.out
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert next(one["name"] for one in events if one["event"] == "trace") == "PUBLISH"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run_command(words) == 2  # the file exists
    assert run_command(["admin", "trace"]) == 1
    assert "is required (400)" in capsys.readouterr().err


def event(kind: str, name: str, topic: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "time": 1.5, "kind": kind, "name": name, "client_id": "a\x1b", "topic": topic, "fields": fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (event("received", "PINGREQ", bytes=0), "a\\x1b > PINGREQ bytes=0"),
        (event("hook", "authorize", "t", plugin="acl", verdict="deny", microseconds=12, rule="line 3", reason=None),
         "a\\x1b ? authorize acl: deny in 12 µs t rule=line 3"),
        (event("route", "published", "t", matched=1, recipients=[{"client_id": "b", "filter": "#", "online": False}]),
         "a\\x1b = published t matched=1 recipients=b(#)(offline)"),
        (event("sent", "PUBACK", code=0x87), "a\\x1b < PUBACK code=0x87"),
        (event("drop", "offline_qos0", "t\n", direction="out", detail=""), "a\\x1b x offline_qos0 t\\x0a direction=out"),
    ],
)  # fmt: skip
def test_an_event_is_one_line(shown: dict[str, Any], text: str) -> None:
    assert line_of(shown)[13:] == text
    assert "\x1b[31m" in line_of(shown, color=True) or shown["kind"] not in ("drop", "hook")


def test_the_options_are_those_of_the_api() -> None:
    parser = argparse.ArgumentParser()

    def command(name: str, help: str, run: Any) -> argparse.ArgumentParser:
        return parser

    trace_cli.register(command)
    given = parser.parse_args(["--client", "a", "--for", "1m"])
    assert (given.client, given.seconds, given.rate) == ("a", 60, 200)


def test_a_trace_that_fails_ends_its_response() -> None:
    """If a trace fails, its response must end. It must not stay open and silent while the client waits."""
    reasons: list[str] = []

    class Stream(EventStream):
        def end(self, reason: str) -> None:
            reasons.append(reason)

    class Failing:
        ended = ""

        def __aiter__(self) -> "Failing":
            return self

        async def __anext__(self) -> TraceEvent:
            return TraceEvent(0.0, TraceKind.HOOK, "authorize", "a", None, {"rule": object()})

    broken: Any = Failing()
    nothing: Any = None
    with pytest.raises(TypeError):
        asyncio.run(pump(broken, Stream(nothing, "trace", "events")))
    assert reasons == ["the trace failed"]
