"""Test a real broker and real clients with a service that fails in many ways.

Every acknowledged event arrives, in order per key, and a repeated event has the same id. Abandoned events can be listed
and resent.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import aiomqtt
import pytest
from aiohttp import web
from hookmq.mqtt_api import Publish
from hookmq_testing import AsyncioClient, run_command
from hookmq_webhook_receiver import new_secret, verify
from serving import Served, serving

CLIENTS, EACH = 3, 40
FAST = {
    "first_delay": "10ms", "longest_delay": "100ms", "breaker_failures": 3, "breaker_pause": "50ms",
}  # fmt: skip


def config(tmp_path: Path, url: str, **hook: Any) -> str:
    path = tmp_path / "hookmq.yaml"
    settings = {
        "url": url,
        "events": ["message.published"],
        "outbox": {"path": str(tmp_path / "outbox")},
        "retry": FAST,
        "timeout": "300ms",
        **hook,
    }
    listeners: list[dict[str, Any]] = [
        {"name": "tcp", "bind": "127.0.0.1:0"},
        {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
    ]
    document = {
        "version": 1,
        "listeners": listeners,
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(tmp_path / "data")}},
            {"use": "webhook", "config": settings},
        ],
    }
    path.write_text(json.dumps(document))
    return str(path)


@contextlib.asynccontextmanager
async def running(path: str) -> AsyncIterator[Served]:
    """Run `serving` in a thread, so that this event loop can receive requests."""
    with contextlib.ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, serving("-c", path))
        await asyncio.to_thread(stack.close)


async def publish(port: int, name: str, count: int = EACH, first: int = 0) -> None:
    async with aiomqtt.Client("127.0.0.1", port, identifier=name) as client:
        for number in range(first, first + count):
            body = json.dumps({"from": name, "n": number})
            await client.publish(f"t/{number % 3}", body, 1 + number % 2)


class Chaos:
    """A service that answers at random and records the requests."""

    def __init__(self, receiver: Any, seed: int) -> None:
        self.receiver = receiver
        self.random = random.Random(seed)
        self.seen: list[tuple[str, int, str]] = []
        """The client, number and event id of each event in a request that arrived completely."""
        self.well = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        draw = 1.0 if self.well else self.random.random()
        if draw < 0.1:
            return web.Response(status=500, text="it broke")
        if draw < 0.15:
            return web.Response(status=429, headers={"Retry-After": "0"})
        if draw < 0.2:
            return web.Response(status=503)
        assert request.transport is not None
        if draw < 0.25:
            request.transport.abort()
            return web.Response()
        found = json.loads(self.receiver.requests[-1][3])
        for one in found if isinstance(found, list) else [found]:
            payload = one["data"]["payload"]
            self.seen.append((payload["from"], payload["n"], one["id"]))
        if draw < 0.3:  # the request arrived, but its response is lost
            request.transport.abort()
        elif draw < 0.35:
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            request.transport.abort()
            return response
        elif draw < 0.4:
            request.transport.write(b"\x00garbage\r\n\r\n")
            request.transport.close()
        elif draw < 0.43:
            await asyncio.sleep(0.5)  # longer than the timeout
        elif draw < 0.6:
            await asyncio.sleep(0.01)
        return web.Response(status=204)


def check(seen: list[tuple[str, int, str]], clients: int, each: int) -> None:
    for client in range(clients):
        name = f"c{client}"
        firsts = list(dict.fromkeys(n for who, n, _ in seen if who == name))
        assert firsts == list(range(each)), (name, firsts)
    ids: dict[tuple[str, int], str] = {}
    for who, number, id in seen:
        assert ids.setdefault((who, number), id) == id
    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize(
    ("envelope", "count", "concurrency"),
    [("structured", 1, 4), ("batch", 10, 2), ("plain", 25, 1)],
)
@pytest.mark.slow
async def test_a_service_that_does_everything_wrong(
    receiver: Any, tmp_path: Path, envelope: str, count: int, concurrency: int
) -> None:
    chaos = Chaos(receiver, 7)
    receiver.answer(chaos.answer)
    path = config(
        tmp_path,
        receiver.url,
        envelope=envelope,
        batch={"count": count},
        concurrency=concurrency,
        drain="60s",
    )
    port = receiver.port
    async with running(path) as served:
        mqtt = served.ports["tcp"]
        half = EACH // 2
        await asyncio.gather(*(publish(mqtt, f"c{n}", half) for n in range(CLIENTS)))
        await receiver.stop()  # the service is down for a while
        await asyncio.gather(*(publish(mqtt, f"c{n}", EACH - half, half) for n in range(CLIENTS)))
        await receiver.start(port)

        def all_there() -> bool:
            chaos.well = chaos.well or len(receiver.requests) > 500
            return len({one[:2] for one in chaos.seen}) >= CLIENTS * EACH - count

        await receiver.wait(all_there, 120)
        chaos.well = True
    check(chaos.seen, CLIENTS, EACH)  # the rest came while it stopped


@pytest.mark.slow
async def test_a_stop_sends_what_it_can_and_a_start_goes_on(receiver: Any, tmp_path: Path) -> None:
    chaos = Chaos(receiver, 1)
    chaos.well = True
    receiver.answer(receiver.never)
    path = config(tmp_path, receiver.url, drain="100ms", timeout="30s")
    async with running(path) as served:
        await asyncio.gather(*(publish(served.ports["tcp"], f"c{n}", 10) for n in range(2)))
        await receiver.wait(lambda: len(receiver.requests) >= 2)
    assert chaos.seen == []
    [stopped] = [entry for entry in served.log if entry["event"] == "webhook.stopped"]
    assert (stopped["left"], stopped["of"]) == (20, "kept")
    receiver.answer(chaos.answer)
    path = config(tmp_path, receiver.url, drain="60s", timeout="30s")
    async with running(path):
        await receiver.wait(lambda: len(receiver.requests) >= 20 + 2)
    check(chaos.seen, 2, 10)
    chaos.seen.clear()
    async with running(path):
        pass
    assert chaos.seen == []  # no event is repeated after a clean stop


@pytest.mark.slow
async def test_a_reload_changes_where_and_how_it_sends(receiver: Any, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path == "/new" else 500)

    receiver.answer(answer)
    secret = new_secret()
    path = config(tmp_path, receiver.url + "/old")
    async with running(path) as served:
        await publish(served.ports["tcp"], "c0", 3)
        await receiver.wait(lambda: len(receiver.requests) >= 2)
        config(
            tmp_path,
            receiver.url + "/new",
            envelope="batch",
            batch={"count": 10},
            sign={"secret": secret},
            headers={"X-Plant": "7"},
        )
        os.kill(served.process.pid, signal.SIGHUP)
        await receiver.wait(lambda: any(one[1] == "/new" for one in receiver.requests))
        await publish(served.ports["tcp"], "c0", 3, 3)
        await receiver.wait(lambda: receiver.events[-1]["data"]["payload"]["n"] == 5)
        _, _, headers, body = receiver.requests[-1]
        verify(headers, body, [secret])
        assert headers["x-plant"] == "7"
        assert headers["content-type"] == "application/cloudevents-batch+json"
        sent = [one["data"]["payload"]["n"] for one in receiver.events]
        assert list(dict.fromkeys(sent)) == sorted(set(sent))
    assert "config.reloaded" in [entry["event"] for entry in served.log]
    assert secret not in json.dumps(served.log)


@pytest.mark.slow
async def test_dead_letters_are_listed_and_sent_again(
    receiver: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer(400)
    path = config(tmp_path, receiver.url)
    async with running(path) as served:
        await publish(served.ports["tcp"], "c0", 4)
        await receiver.wait(lambda: len(receiver.requests) >= 4)
        base = f"http://127.0.0.1:{served.ports['http']}/plugins/webhook/deadletter"
        async with aiohttp.ClientSession() as session:
            for _ in range(100):
                async with session.get(base) as response:
                    listed = await response.json()
                if listed["waiting"] == 4:
                    break
            first = listed["dead_letters"][0]
            assert (first["type"], first["client_id"], first["reason"], first["attempts"]) == (
                "message.published", "c0", "status 400", 1,
            )  # fmt: skip
            assert "payload" not in first
            receiver.answer(200)
            async with session.post(base + "/replay", json={"ids": [first["id"]]}) as response:
                assert await response.json() == {"arrived": 1, "failed": 0, "reason": ""}
            async with session.post(base + "/replay", data=b"[") as response:
                assert response.status == 400
        with_broker = await asyncio.to_thread(
            run_command, ["webhook", "deadletter", "list", "-c", path]
        )
        assert with_broker == 1
        assert "in use by another process" in capsys.readouterr().err
    ids = [one["id"] for one in receiver.events]

    async def run(*words: str) -> tuple[int, list[str]]:
        code = await asyncio.to_thread(run_command, ["webhook", "deadletter", *words, "-c", path])
        return code, capsys.readouterr().out.splitlines()

    code, lines = await run("list")
    assert (code, len(lines)) == (0, 3)
    assert ids[1] in lines[0]
    assert lines[0].endswith("message.published c0 t/1: status 400, 1 attempt")
    code, lines = await run("list", "--json")
    assert [json.loads(line)["id"] for line in lines] == ids[1:4]
    receiver.requests.clear()
    receiver.answer(500)
    assert await run("replay") == (1, ["0 arrived, 1 failed, 3 left"])
    receiver.answer(200)
    assert await run("replay", "--only", ids[2]) == (0, ["1 arrived, 0 failed, 2 left"])
    assert (await run("replay", "--only", "nobody"))[0] == 1
    assert await run("replay") == (0, ["2 arrived, 0 failed, 0 left"])
    assert [one["id"] for one in receiver.events] == [ids[1], ids[2], ids[1], ids[3]]
    assert [one["data"]["payload"]["n"] for one in receiver.events] == [1, 2, 1, 3]
    assert await run("list") == (0, [])


@pytest.mark.slow
async def test_no_secret_and_no_payload_is_logged(receiver: Any, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="their-own-secret")

    receiver.answer(answer)
    path = config(
        tmp_path,
        receiver.url,
        auth={"bearer_token": "bearer-word"},
        retry={**FAST, "max_attempts": 2},
    )
    async with running(path) as served:
        async with aiomqtt.Client("127.0.0.1", served.ports["tcp"], identifier="c") as client:
            await client.publish("a", "the-payload", 1)
        await receiver.wait(lambda: len(receiver.requests) >= 2)
    assert receiver.requests[0][2]["authorization"] == "Bearer bearer-word"
    text = json.dumps(served.log)
    assert "webhook.given_up" in text
    for word in ("bearer-word", "the-payload", "their-own-secret"):
        assert word not in text


async def test_a_folder_of_something_else_is_refused_in_words(
    receiver: Any, tmp_path: Path
) -> None:
    path = config(tmp_path, receiver.url)
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "photos.zip").write_text("x")
    with pytest.raises(AssertionError, match=r"contains unknown files: photos\.zip"):
        async with running(path):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["at_least_once", "best_effort"])
async def test_memory_is_bounded_while_nobody_answers(
    receiver: Any, tmp_path: Path, mode: str
) -> None:
    receiver.answer(receiver.never)
    path = config(
        tmp_path,
        receiver.url,
        mode=mode,
        window_bytes="1MiB",
        queue={"max_bytes": "1MiB"},
        outbox={"path": str(tmp_path / "outbox"), "max_unwritten": "4MiB"},
        timeout="60s",
        drain="0s",
    )
    count, size = 20_000, 4000
    async with running(path) as served:
        client = await AsyncioClient("c", 4).connect(served.ports["tcp"])

        async def flood(count: int) -> int:
            for _ in range(count // 100):
                client.send(*[Publish("a", bytes(size))] * 100)
                await client.drain()
            await client.ping()
            return resident(served.process.pid)

        # Fill all queues, including those of the observers.
        await flood(count)
        before = await flood(2 * count)
        after = await flood(2 * count)
        client.disconnect()
        await client.wait_closed()
    assert after - before < count * size / 4, f"{after - before} bytes more"


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024
