"""Test the sending process: its input, its responses, and its restart after it dies."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from aiohttp import web
from hookmq_toolkit.tls_client import TlsConfig
from hookmq_webhook.config import AuthConfig, SignConfig, WebhookConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.events import Event
from hookmq_webhook.process import Frames, SenderProcess, frame
from hookmq_webhook.queues import Numbered
from hookmq_webhook_receiver.keys import new_secret
from hookmq_webhook_receiver.signature import verify
from hypothesis import given
from hypothesis import strategies as st

ARRIVED = Answer(Verdict.ARRIVED)
Make = Callable[..., SenderProcess]


def event(number: int, **data: Any) -> list[Numbered]:
    made = Event("message.published", 1.0, "c", "t", "tcp", data, b"x")
    return [Numbered(number, made, 1, f"e-{number}")]


@pytest.fixture
async def make(receiver: Any) -> AsyncIterator[Make]:
    made: list[SenderProcess] = []

    def one(logged: list[str] | None = None, **config: Any) -> SenderProcess:
        def log(level: str, name: str, **fields: object) -> None:
            if logged is not None:
                logged.append(name)

        settings = WebhookConfig(url=config.pop("url", receiver.url + "/in"), **config)
        made.append(SenderProcess(settings, "w", log))
        return made[-1]

    yield one
    for each in made:
        await each.close()


def pid(sender: SenderProcess) -> int:
    life = sender._life
    assert life is not None
    return life.process.pid


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_the_sender_process_sends_signs_and_counts(receiver: Any, make: Make) -> None:
    secret = new_secret()
    receiver.answer(200, 503, 400, 200)
    given_headers = MappingProxyType({"X-A": "${client}"})  # as the configuration has it
    sender = make(
        sign=SignConfig(secret), headers=given_headers, auth=AuthConfig(bearer_token="bearer-word")
    )
    await sender.start()
    assert await sender.send(event(1, qos=1)) == ARRIVED
    assert await sender.send(event(2)) == Answer(Verdict.AGAIN, "status 503")
    assert await sender.send(event(2)) == Answer(Verdict.REFUSED, "status 400")
    _, path, headers, body = receiver.requests[0]
    assert (path, headers["authorization"]) == ("/in", "Bearer bearer-word")
    verify(headers, body, [secret])
    assert headers["x-a"] == "c"
    assert [one["id"] for one in receiver.events] == ["e-1", "e-2", "e-2"]
    assert receiver.events[0]["data"]["qos"] == 1
    assert (sender.sent, sender.statuses) == (3, {200: 1, 503: 1, 400: 1})
    assert sender.bytes == sum(len(body) for *_, body in receiver.requests)
    assert os.sched_getscheduler(pid(sender)) == os.SCHED_BATCH  # never preempts the broker
    shown = command_line(pid(sender))
    assert b"hookmq_webhook.child" in shown
    assert b"bearer-word" not in shown
    assert await sender.send(event(3, wrong=object())) == Answer(
        Verdict.REFUSED, "cannot be sent: ValueError"
    )


async def test_events_of_a_killed_sender_process_are_sent_again(receiver: Any, make: Make) -> None:
    logged: list[str] = []
    receiver.answer(receiver.never, 200)
    sender = make(logged)
    sending = asyncio.create_task(sender.send(event(7)))
    await receiver.wait(lambda: len(receiver.requests) == 1)
    first = pid(sender)
    os.kill(first, 9)
    assert await sending == ARRIVED
    assert [one["id"] for one in receiver.events] == ["e-7", "e-7"]
    assert pid(sender) != first
    assert (sender.restarts, logged) == (1, ["webhook.sender_died"])


async def test_one_that_is_stuck_is_killed(receiver: Any, make: Make) -> None:
    logged: list[str] = []
    sender = make()

    def log(level: str, name: str, **fields: object) -> None:
        logged.append(name)
        sender.patience = 60.0  # the next one may take its time to start

    sender._log = log
    assert await sender.send(event(6)) == ARRIVED
    sender.patience -= sender._longest() - 0.1
    first = pid(sender)
    os.kill(first, signal.SIGSTOP)
    assert await sender.send(event(7)) == ARRIVED
    assert [one["id"] for one in receiver.events] == ["e-6", "e-7"]
    assert pid(sender) != first
    assert logged == ["webhook.sender_stuck", "webhook.sender_died"]


async def test_one_that_cannot_live_is_no_busy_loop(
    receiver: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    sender = make()
    assert await sender.send(event(1)) == Answer(Verdict.AGAIN, "the sending process died")
    assert sender.restarts == 2
    monkeypatch.setattr("sys.executable", "/nothing")
    logged: list[str] = []
    sender = make(logged)
    assert (await sender.send(event(1))).verdict is Verdict.AGAIN
    assert logged == ["webhook.sender_not_started"] * 3


async def test_another_configuration_holds_for_what_comes_next(receiver: Any, make: Make) -> None:
    released = asyncio.Event()

    async def later(request: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    receiver.answer(later, 200)
    sender = make()
    under_way = asyncio.create_task(sender.send(event(1)))
    await receiver.wait(lambda: len(receiver.requests) == 1)
    sender.use(WebhookConfig(url=receiver.url + "/other", headers={"X-New": "1"}))
    assert await sender.send(event(2)) == ARRIVED
    released.set()
    assert await under_way == ARRIVED
    assert [path for _, path, *_ in receiver.requests] == ["/in", "/other"]
    assert receiver.requests[1][2]["x-new"] == "1"
    with pytest.raises(OSError, match="No such file"):
        sender.use(WebhookConfig(url=receiver.url, tls=TlsConfig(ca_file=Path("/nothing"))))
    assert await sender.send(event(3)) == ARRIVED


async def test_it_ends_with_its_broker(receiver: Any, make: Make) -> None:
    receiver.answer(receiver.never)
    sender = make()
    sending = asyncio.create_task(sender.send(event(1)))
    await receiver.wait(lambda: len(receiver.requests) == 1)
    life = sender._life
    assert life is not None
    os.kill(life.process.pid, 15)  # only the broker handles SIGTERM
    await sender.close()
    assert life.process.returncode == 0
    assert (await sending).verdict is Verdict.AGAIN
    assert (await sender.send(event(2))).verdict is Verdict.AGAIN


@given(st.lists(st.one_of(st.integers(), st.binary(), st.text())), st.integers(1, 7))
def test_frames_are_cut_as_they_were_made(values: list[Any], step: int) -> None:
    frames = Frames()
    data = b"".join(map(frame, values))
    found = []
    for at in range(0, len(data), step):
        found += frames.feed(data[at : at + step])
    assert found == values
