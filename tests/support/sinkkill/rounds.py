"""Kill a broker with a sink, and the sink's process, repeatedly while clients publish.

Each round kills the sink's process, the broker or both at a random moment. A target that can be stopped is sometimes
killed as well. One seed determines all choices, but the exact moment of a kill also depends on the machine. At the end,
the target must have every acknowledged message.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hookmq_testing import AsyncioClient, LoopThread
from serving import Served, serving
from sink_broker import senders_of

from sinkkill.ledger import SinkLedger, Stored

KEYS: Final = ("a", "b", "c", "d", "e")
TOPIC: Final = "kill"
EACH: Final = 400
"""Maximum number of messages that each publisher sends between two kills of the broker."""
PATIENCE: Final = 60.0
"""At the end, messages are lost if they are missing after this many seconds without a new record in the target."""


class Broken(AssertionError):
    """A sink broke a guarantee."""


class _Killed(Exception):
    """Raised to leave the `with` block of a broker that was killed."""


@dataclass
class SinkKill:
    """A broker with one sink, both killed repeatedly.

    `sink` is the sink's configuration without its name and topics. `read` returns the records in the target, in the
    order in which they were stored. It is called while the sink writes, and may leave out the newest records. If `once`
    is true, the target may contain each message only once. `stop_target` kills the target, and `start_target` starts it
    again.
    """

    folder: Path
    sink: Mapping[str, Any]
    read: Callable[[], list[Stored]]
    once: bool = False
    seed: int = 0
    stop_target: Callable[[], None] | None = None
    start_target: Callable[[], None] | None = None
    ledger: SinkLedger = field(default_factory=SinkLedger)
    broker_kills: int = 0
    sender_kills: int = 0
    target_kills: int = 0
    stored: list[Stored] = field(default_factory=list)

    def run(self, rounds: int, say: Callable[[str], None] = lambda line: None) -> None:
        """Kill the broker `rounds` times, and the sink's process even more often. Then compare the target with the
        ledger. Raises Broken.
        """
        self._rng = random.Random(self.seed)
        self._config = self.folder / "hookmq.yaml"
        self._config.write_text(json.dumps(self._settings()))
        for number in range(rounds):
            with suppress(_Killed):
                self._round()
            say(f"round {number + 1}: {self.ledger.total} messages acknowledged")
        with serving("-c", str(self._config)) as served:
            with LoopThread() as thread:
                thread.run(self._publish(served.ports["tcp"], threading.Event(), 5))
            self._settle()
            served.log[:] = [one for one in served.log if one["level"] != "error"]
        found = self.ledger.mistakes(self.stored, self.once)
        if found:
            raise Broken("\n".join(found[:20]))

    def _settings(self) -> Mapping[str, Any]:
        own = {
            "name": "kill", "topics": [f"{TOPIC}/#"], "decode": "json", "key": "${topic.2}",
            "batch": {"messages": 50, "age": "5ms"}, "retry": {"first": "20ms", "longest": "200ms"}, **self.sink,
        }  # fmt: skip
        sinks = {"path": str(self.folder / "sinks"), "sinks": [own]}
        return {
            "version": 1,
            "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
            "auth": {"default": "allow"},
            "authz": {"default": "allow"},
            "plugins": [
                {"use": "storage", "config": {"path": str(self.folder / "store")}},
                {"use": "sinks", "config": sinks},
            ],
        }

    def _round(self) -> None:
        rng = self._rng
        with serving("-c", str(self._config)) as served, LoopThread() as thread:
            over = threading.Event()
            publishing = thread.start(self._publish(served.ports["tcp"], over, EACH))
            for _ in range(1 + rng.randrange(2)):
                self._grow(publishing)
                over.wait(rng.uniform(0.0, 0.3))
                self._kill_sender(served)
            self._grow(publishing)
            down = self.stop_target is not None and rng.random() < 0.4
            if down:
                assert self.stop_target is not None
                self.stop_target()
                self.target_kills += 1
                over.wait(rng.uniform(0.02, 0.4))
            over.wait(rng.uniform(0.02, 0.6))
            if rng.random() < 0.5:
                self._kill_sender(served)
            served.process.kill()
            served.process.wait(30)
            self.broker_kills += 1
            over.set()
            publishing.result(60)
            if down and self.start_target is not None:
                self.start_target()
            raise _Killed

    def _grow(self, publishing: "Future[None]") -> None:
        """Wait until the target has new records. This ensures that the next kill interrupts a sink that is writing."""
        count, began = len(self.read()), time.monotonic()
        while len(self.read()) == count and not publishing.done():
            if time.monotonic() - began > PATIENCE:
                raise Broken("the target gets nothing while clients publish")
            threading.Event().wait(0.02)

    def _kill_sender(self, served: Served) -> None:
        for pid in senders_of(served.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.sender_kills += 1

    async def _publish(self, port: int, over: threading.Event, count: int) -> None:
        """Publish until the broker is gone, with one client for each key."""
        await asyncio.gather(*(self._publish_key(port, key, over, count) for key in KEYS))

    async def _publish_key(self, port: int, key: str, over: threading.Event, count: int) -> None:
        client = AsyncioClient(f"publisher-{key}")
        with suppress(ConnectionError, TimeoutError, OSError):
            await client.connect(port)
            for _ in range(count):
                if over.is_set():
                    break
                number = self.ledger.publish(key)
                payload = json.dumps({"key": key, "number": number}).encode()
                await client.publish(f"{TOPIC}/{key}", payload, 1, expect=0)
                self.ledger.acknowledge(key, number)
        if not client.closed:
            client.drop()
            await asyncio.sleep(0)  # the transport closes its socket in the next turn

    def _settle(self) -> None:
        """Wait until the target has all acknowledged messages. Raises Broken if the target stops growing first."""
        count, since = -1, time.monotonic()
        while True:
            self.stored = self.read()
            missing = self.ledger.missing(self.stored)
            if not missing:
                return
            if len(self.stored) != count:
                count, since = len(self.stored), time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise Broken(
                    f"acknowledged, but not in the target: { {k: v[:20] for k, v in missing.items()} }"
                )
            threading.Event().wait(0.05)
