"""Test the sending process: what it sends and reports, its restart after it dies, and several instances."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hookmq.plugin import Message
from hookmq.storage_api import CommitId
from hookmq_toolkit.child_runtime import ChildRuntime
from hookmq_webhook.config import AuthConfig, SignConfig, WebhookConfig
from hookmq_webhook.counts import Totals
from hookmq_webhook.engine import Opening
from hookmq_webhook.events import Event
from hookmq_webhook.links import RemoteLink
from hookmq_webhook.outbox import Bounds, Outbox
from hookmq_webhook.parcels import Answer, Buried, Verdict
from hookmq_webhook.queues import MemoryQueue, Numbered
from hookmq_webhook_receiver.keys import new_secret
from hookmq_webhook_receiver.signature import verify


class Broker:
    """The broker's side of one instance, with an outbox or, without a folder, with a queue in memory."""

    def __init__(self, runtime: ChildRuntime, folder: Path | None, id: str, **config: Any) -> None:
        self.logged: list[str] = []
        self.buried: list[tuple[str, str, int]] = []
        self.disabled = ""
        self.totals = Totals()
        self.changed = asyncio.Condition()
        self.outbox: Outbox | None = None
        self.memory: MemoryQueue | None = None
        if folder is None:
            self.memory = MemoryQueue("m", 1000, 1 << 20, "oldest", lambda event: None)
        else:
            self.outbox = Outbox(
                id,
                folder,
                runtime,
                lambda topic: True,
                self._events,
                self._ready,
                Bounds(1 << 20, 0),
            )
            self.outbox.recover(CommitId("s", 0))
        self.commit = 0
        self.link = RemoteLink(
            WebhookConfig(**config), id, runtime, self, self.memory, self.totals.end
        )
        self.link.open(self._opening, self._place)

    def _events(self, message: Message) -> list[Event]:
        return [
            Event("message.published", 1.0, "c", message.topic, "tcp", {"qos": 1}, message.payload)
        ]

    def _opening(self) -> Opening:
        if self.outbox is None:
            return Opening(None, "", False, None, True)
        return Opening(str(self.outbox.folder), self.outbox.log.id, False, None, False)

    def _place(self) -> tuple[Any, ...]:
        if self.memory is not None:
            return self.memory.waiting, self.memory.end
        assert self.outbox is not None
        return self.outbox.place

    def _ready(self) -> None:
        if hasattr(self, "link"):
            self.link.wake()

    def publish(self, *payloads: bytes) -> None:
        if self.memory is not None:
            for payload in payloads:
                self.memory.put(self._events(Message("t", payload))[0])
            self.link.wake()
            return
        assert self.outbox is not None
        self.commit += 1
        commit = CommitId("s", self.commit)
        for payload in payloads:
            self.outbox.append(commit, Message("t", payload))
        outbox = self.outbox
        outbox.flush(commit, lambda failed: outbox.committed(commit))

    async def wait(self, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(until)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _note(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._tell())

    @property
    def pid(self) -> int:
        return self.link.process.child.pid

    async def close(self) -> None:
        await self.link.close()
        if self.outbox is not None:
            closed = asyncio.get_running_loop().create_future()
            self.outbox.close(lambda: closed.set_result(None))
            await closed

    # Host ------------------------------------------------------------------------------------------------------------

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append(event)
        self._note()

    def disable(self, reason: str) -> None:
        self.disabled = reason

    def note_failing(self, since: float | None) -> None:
        pass

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        self.buried.append((one.id, reason, attempts))
        buried("")

    def lost(self, first: int, end: int) -> None:
        raise AssertionError("nothing is lost")

    def add_spans(self, *_: Any) -> None:
        raise AssertionError("no message is traced")

    def take_report(self, report: dict[str, Any]) -> None:
        self.totals.take(report["counts"], report["durations"])
        if self.outbox is not None:
            self.outbox.take_position(report["position"])
        self._note()


Make = Callable[..., Broker]


@pytest.fixture
async def make(receiver: Any, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Broker] = []
    runtime = ChildRuntime(lambda level, event, **fields: None)

    def one(id: str = "w", memory: bool = False, **config: Any) -> Broker:
        folder = None if memory else tmp_path / id
        settings = {"url": receiver.url + f"/{id}", **config}
        made.append(Broker(runtime, folder, id, **settings))
        return made[-1]

    yield one
    for each in made:
        await each.close()


def payloads(receiver: Any) -> list[Any]:
    return [one["data"]["payload"] for one in receiver.events]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_it_sends_signs_and_counts(receiver: Any, make: Make) -> None:
    secret = new_secret()
    receiver.answer(503, 400, 200)
    broker = make(
        sign=SignConfig(secret),
        headers=MappingProxyType({"X-A": "${client}"}),  # as the configuration has it
        auth=AuthConfig(bearer_token="bearer-word"),
    )
    broker.publish(b"0", b"1")
    await receiver.wait(lambda: len(receiver.requests) == 3)
    await broker.wait(lambda: broker.totals["delivered"] == 1)
    _, path, headers, body = receiver.requests[0]
    assert (path, headers["authorization"]) == ("/w", "Bearer bearer-word")
    verify(headers, body, [secret])
    assert headers["x-a"] == "c"
    assert payloads(receiver) == ["0", "0", "1"]
    assert broker.outbox is not None
    log = broker.outbox.log.id
    assert broker.buried == [(f"{log}-0", "status 400", 2)]
    assert broker.totals.statuses == {"200": 1, "400": 1, "503": 1}
    assert broker.totals["bytes"] == sum(len(body) for *_, body in receiver.requests)
    assert broker.totals.failures == {"status": 2}
    assert broker.totals.durations.count == 3
    await broker.wait(lambda: broker.outbox is not None and broker.outbox.waiting == 0)
    assert os.sched_getscheduler(broker.pid) == os.SCHED_BATCH  # never preempts the broker
    shown = command_line(broker.pid)
    assert b"hookmq_webhook.child" in shown
    assert b"bearer-word" not in shown
    latest, *_ = await broker.link.deliveries(f"{log}-1", 10)
    assert (latest.result, latest.attempt) == ("arrived", 1)


@pytest.mark.parametrize("memory", [False, True])
async def test_after_a_kill_only_events_in_flight_are_sent_again(
    receiver: Any, make: Make, memory: bool
) -> None:
    receiver.answer(200, 200, receiver.never, 200)
    broker = make(memory=memory)
    broker.publish(b"0", b"1", b"2", b"3")
    await receiver.wait(lambda: len(receiver.requests) == 3)
    first = broker.pid
    os.kill(first, signal.SIGKILL)
    await receiver.wait(lambda: len(receiver.requests) == 5)
    assert payloads(receiver) == ["0", "1", "2", "2", "3"]
    ids = [one["id"] for one in receiver.events]
    assert ids[2] == ids[3]
    await broker.wait(lambda: broker.totals["delivered"] >= 2)
    assert broker.pid != first
    assert (broker.link.restarts, broker.logged) == (1, ["webhook.sender_died"])


async def test_one_process_serves_all_instances(receiver: Any, make: Make) -> None:
    one, two, three = make("one"), make("two"), make("three", memory=True)
    for broker in (one, two, three):
        broker.publish(b"x")
    await receiver.wait(lambda: len(receiver.requests) == 3)
    assert {path for _, path, *_ in receiver.requests} == {"/one", "/two", "/three"}
    assert one.pid == two.pid == three.pid != 0
    await one.link.close()
    two.publish(b"y")
    await receiver.wait(lambda: len(receiver.requests) == 4)
    assert receiver.requests[-1][1] == "/two"


async def test_one_that_is_stuck_is_killed(receiver: Any, make: Make) -> None:
    broker = make()
    broker.link.process.child.patience = 0.5
    broker.publish(b"0")
    await receiver.wait(lambda: len(receiver.requests) == 1)
    os.kill(broker.pid, signal.SIGSTOP)
    broker.publish(b"1")
    await broker.wait(lambda: "webhook.sender_died" in broker.logged)
    await receiver.wait(lambda: "1" in payloads(receiver))
    assert broker.logged[:2] == ["webhook.sender_stuck", "webhook.sender_died"]


async def test_one_that_cannot_start_is_no_busy_loop(
    receiver: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nothing")
    broker = make()
    answer = await broker.link.send([])
    assert answer == Answer(Verdict.AGAIN, "the process is not running")
    await broker.wait(lambda: len(broker.logged) >= 2)
    assert set(broker.logged) == {"webhook.sender_not_started"}
    monkeypatch.undo()
    broker.publish(b"0")
    await receiver.wait(lambda: len(receiver.requests) == 1)


async def test_another_configuration_holds_for_what_comes_next(receiver: Any, make: Make) -> None:
    receiver.answer(receiver.never, 200)
    broker = make()
    broker.publish(b"0")
    await receiver.wait(lambda: len(receiver.requests) == 1)
    broker.link.use(WebhookConfig(url=receiver.url + "/other", headers={"X-New": "1"}))
    receiver.released.set()  # the request in progress is completed
    broker.publish(b"1")
    await receiver.wait(lambda: len(receiver.requests) == 2)
    assert [path for _, path, *_ in receiver.requests] == ["/w", "/other"]
    assert receiver.requests[1][2]["x-new"] == "1"


async def test_a_drain_waits_until_the_process_has_started(receiver: Any, make: Make) -> None:
    broker = make(memory=True)
    broker.publish(b"0", b"1")
    assert broker.pid == 0
    async with asyncio.timeout(60):
        await broker.link.drain()
    assert payloads(receiver) == ["0", "1"]


async def test_operators_reach_the_engine(receiver: Any, make: Make) -> None:
    broker = make()
    broker.publish(b"0")
    await receiver.wait(lambda: len(receiver.requests) == 1)
    broker.link.pause(True, False)
    await broker.link.deliveries("", 1)  # the pause has arrived
    broker.publish(b"1", b"2")
    await broker.link.seek(2)
    broker.link.pause(False, True)
    await receiver.wait(lambda: len(receiver.requests) == 2)
    assert payloads(receiver) == ["0", "2"]
    await broker.link.drain()
    made = Event("message.published", 1.0, "c", "t", payload=b"letter")
    assert await broker.link.send([Numbered(9, made, 1, "e-9")]) == Answer(Verdict.ARRIVED)
    assert receiver.events[-1]["id"] == "e-9"


async def test_it_ends_with_its_broker(receiver: Any, make: Make) -> None:
    receiver.answer(receiver.never)
    broker = make()
    broker.publish(b"0")
    await receiver.wait(lambda: len(receiver.requests) == 1)
    pid = broker.pid
    os.kill(pid, signal.SIGTERM)  # only the broker handles SIGTERM
    assert broker.link.process.child.running
    await broker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
