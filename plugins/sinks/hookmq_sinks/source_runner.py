"""A source's process: ``python -P -m hookmq_sinks.source_runner FD``, started by `hookmq_sinks.source_process`.

The process shares only a socket pair with the broker, so an origin that is stuck never delays the broker. It gets its
settings in the first frame, so that secrets do not appear in a process list. It ends when the broker closes the socket.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hookmq.config_api import bind_values
from hookmq.plugin import ReasonCode

from hookmq_sinks.broker_socket import BrokerEnded, BrokerSocket
from hookmq_sinks.dead_letters import DeadLetters
from hookmq_sinks.event_loop import new_event_loop
from hookmq_sinks.extras import extra_hint
from hookmq_sinks.intake import AGAIN
from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_config import SourceConfig
from hookmq_sinks.source_requests import SourceRequests
from hookmq_sinks.source_wire import encode_frame, encode_json, encode_message, read_frame

NICE: Final = 5
CLOSING: Final = 3.0
"""Seconds that closing a source may take."""
GRACE: Final = 2.0
"""Seconds that acknowledging the last messages may take when the broker or the source stops."""
OPENING: Final = 60.0
"""Seconds that opening a source may take."""
TELL_EVERY: Final = 0.5
BUSY_FIRST: Final = 0.1
BUSY_LONGEST: Final = 5.0
"""The first and the longest delay before retrying a message that the broker refused temporarily."""


class SourceRunner:
    """Runs one source: opens it, hands its messages to the broker, and acknowledges them."""

    def __init__(self, given: dict[str, Any], broker: BrokerSocket) -> None:
        self.config = bind_values(SourceConfig, given["source"])
        self.folder = Path(given["folder"])
        self.marks: dict[str, str] = dict(given["marks"])
        self.broker = broker
        broker.paused = given["paused"]
        self.letters = DeadLetters(self.folder, self.config.dead_letter_bytes)
        self.state, self.reason = "starting", ""
        self.counts = {
            "received": 0,
            "batches": 0,
            "refused": 0,
            "skipped": 0,
            "delayed": 0,
            "connections": 0,
        }
        self._source: Source | None = None
        self._connected = False
        self._opening = asyncio.Lock()
        """Held while the origin is opened, so that a test does not open it at the same time."""
        self._requests = SourceRequests(
            self.config, self.letters, broker, self._opening, lambda: self._connected
        )
        broker.on_request = self._requests.take
        self._begun = time.time_ns()
        self._letter = 0
        self._busy = False
        self._handing: asyncio.Future[list[int]] | None = None
        self._told = ""

    def log(self, level: str, event: str, **fields: object) -> None:
        """Ask the broker to log an event about this source."""
        self.broker.tell(log=[level, event, fields])

    async def forget(self, keys: Iterable[str]) -> None:
        """Delete marks. Return after the commit."""
        wanted = list(keys)
        if wanted:
            await self.broker.ask(encode_json({"forget": wanted}))
            for one in wanted:
                self.marks.pop(one, None)

    def status(self) -> dict[str, Any]:
        """Return the status: state, reason and counters."""
        metrics = {} if self._source is None else dict(self._source.metrics())
        return {
            "state": "paused" if self.broker.paused else self.state, "reason": self.reason, **self.counts,
            "dead_letters": self.letters.count, "metrics": metrics,
        }  # fmt: skip

    async def run(self) -> None:
        """Receive messages until the broker ends."""
        await asyncio.to_thread(self.letters.open)
        telling = asyncio.create_task(self._tell_status())
        failures = 0
        while not self.broker.stopping:
            if self.broker.paused:
                await self._wait(None)
                continue
            count = self.counts["connections"]
            try:
                await self._until_ended(self._receive())
            except SourceUnavailable as error:
                self._failed(error.reason, error.permanent)
                failures = 32 if error.permanent else failures + 1
            except BrokerEnded:
                break
            except Exception as error:
                self.log("error", "sources.failed", reason=f"{type(error).__name__}: {error}")
                self._failed(f"{type(error).__name__}: {error}")
                failures += 1
            finally:
                await self._close()
            if self.counts["connections"] > count and failures < 32:
                failures = 1
            if not self.broker.stopping and not self.broker.paused:
                await self._wait(self._delay(failures))
        telling.cancel()
        self.broker.tell(status=self.status())

    def _delay(self, failures: int) -> float:
        config = self.config
        longest: float = min(
            config.retry_longest, config.retry_first * 2.0 ** min(failures - 1, 40)
        )
        return longest * random.uniform(0.5, 1.0)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for `seconds`, or until the broker or an operator sends a request."""
        self.broker.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.broker.changed.wait()

    async def _until_ended(self, work: Any) -> None:
        """Run `work` until it ends, the broker ends, or an operator pauses the source."""
        task = asyncio.ensure_future(work)
        while not task.done() and not self.broker.stopping and not self.broker.paused:
            self.broker.changed.clear()
            changed = asyncio.ensure_future(self.broker.changed.wait())
            await asyncio.wait([task, changed], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        if self._busy:
            await asyncio.wait([task], timeout=GRACE)  # it acknowledges what is committed, and ends
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _receive(self) -> None:
        """Open the source, and hand over messages until it fails."""
        if self._handing is not None:
            await asyncio.wait([self._handing])
        self._busy = False
        context = SourceContext(self.config.name, self.marks, self.forget, self.log, self.folder)
        kind = self.config.kind
        self._source = source = kind(self.config.origin, context)
        try:
            async with self._opening, asyncio.timeout(OPENING):
                await source.open()
        except ImportError as error:
            reason = "; ".join(filter(None, (str(error), extra_hint(kind.extra))))
            raise SourceUnavailable(reason, True) from error
        except TimeoutError:
            raise SourceUnavailable("no answer in time") from None
        self._connected = True
        self.counts["connections"] += 1
        if self.state != "active":
            self.log("info", "sources.available")
        self.state, self.reason = "active", ""
        while not self.broker.stopping and not self.broker.paused:
            messages = await source.read()
            self._busy = True
            # It is not cancelled: the marks must be known before the source is opened again.
            self._handing = asyncio.ensure_future(self._hand_over(messages))
            codes = await asyncio.shield(self._handing)
            await source.acknowledge(messages, codes)
            self._busy = False

    async def _hand_over(self, messages: Sequence[Incoming]) -> list[int]:
        """Publish messages, retrying those that the broker refuses temporarily. Return their reason codes."""
        codes = [0] * len(messages)
        reasons: dict[int, str] = {}
        packets: dict[int, bytes] = {}
        for at, one in enumerate(messages):
            try:
                if one.problem:
                    raise ValueError(one.problem)
                packets[at] = encode_message(one)
            except ValueError as error:
                codes[at], reasons[at] = ReasonCode.PAYLOAD_FORMAT_INVALID, str(error)
        left = list(packets)
        delay = BUSY_FIRST
        while left:
            reply = await self.broker.ask(encode_frame(packets[at] for at in left))
            reasons |= {left[int(at)]: text for at, text in reply["reasons"].items()}
            again: list[int] = []
            for at, code in zip(left, reply["codes"], strict=True):
                codes[at] = code
                if code in AGAIN and not messages[at].answered:
                    again.append(at)
                elif code < 0x80:
                    mark = messages[at].mark
                    if mark is not None:
                        self.marks[mark[0]] = mark[1]
            left = again
            if left:
                self.counts["delayed"] += len(left)
                self.state, self.reason = (
                    "retrying",
                    f"the broker refused messages: {ReasonCode(codes[left[0]]).text}",
                )
                await asyncio.sleep(delay)
                delay = min(BUSY_LONGEST, delay * 2)
        if self.state == "retrying":
            self.state, self.reason = "active", ""
        self.counts["batches"] += 1
        self.counts["received"] += len(messages)
        if any(code >= 0x80 for code in codes):
            await self._bury(messages, codes, reasons)
        return codes

    async def _bury(
        self, messages: Sequence[Incoming], codes: Sequence[int], reasons: Mapping[int, str]
    ) -> None:
        letters: list[tuple[Record, str]] = []
        broken: set[str] = set()
        for at, (one, code) in enumerate(zip(messages, codes, strict=True)):
            if code >= 0x80:
                self.counts["refused"] += 1
                if not one.answered:
                    self._letter += 1
                    word = f"the broker refused it: {ReasonCode(code).text} (0x{code:02X})"
                    record = self._record(one)
                    letters.append((record, one.problem or reasons.get(at, word)))
                    if one.problem:
                        broken.add(record.id)
        if not letters:
            return
        first, reason = letters[0]
        self.log(
            "warning", "sources.messages_refused", messages=len(letters), topic=first.topic[:200], reason=reason[:500]
        )  # fmt: skip
        if self.config.on_refused == "skip":
            self.counts["skipped"] += len(letters)
            return
        while True:
            try:
                await asyncio.to_thread(self.letters.add, letters, broken)
                return
            except OSError as error:
                self.state, self.reason = "failed", f"dead letters: {error.strerror}"
                await asyncio.sleep(BUSY_LONGEST)

    def _record(self, message: Incoming) -> Record:
        properties = message.properties
        return Record(
            f"{self.config.name}:{self._begun}:{self._letter}", self._letter, message.topic, message.payload,
            qos=message.qos, retain=message.retain, received_at=time.time(), content_type=properties.content_type,
            response_topic=properties.response_topic, correlation_data=properties.correlation_data,
            user_properties=properties.user_property or (),
        )  # fmt: skip

    async def _close(self) -> None:
        source, self._source = self._source, None
        self._connected = False
        if source is not None:
            try:
                async with asyncio.timeout(CLOSING):
                    await source.close()
            except Exception as error:
                self.log("warning", "sources.not_closed", reason=str(error) or type(error).__name__)

    def _failed(self, reason: str, permanent: bool = False) -> None:
        word = "failed" if permanent else "retrying"
        if (word, reason) != (self.state, self.reason):
            level = "error" if permanent else "warning"
            self.log(level, "sources.failed" if permanent else "sources.unavailable", reason=reason)
        self.state, self.reason = word, reason

    async def _tell_status(self) -> None:
        while True:
            status = self.status()
            text = json.dumps(status)
            if text != self._told:
                self._told = text
                self.broker.tell(status=status)
            await asyncio.sleep(TELL_EVERY)


async def run(descriptor: int) -> None:
    """Serve one source on the socket `descriptor`."""
    sock = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=sock)
    _, data = await read_frame(reader)
    broker = BrokerSocket(reader, writer)
    runner = SourceRunner(json.loads(data), broker)
    reading = asyncio.create_task(broker.read())
    try:
        await runner.run()
    except Exception as error:
        broker.tell(failed=f"{type(error).__name__}: {error}")
        raise
    finally:
        with suppress(OSError):
            await writer.drain()
        reading.cancel()
        writer.close()


def main() -> int:
    """Run the source until the broker ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the broker decides when to end
    with suppress(OSError):
        os.nice(NICE)
    with (
        suppress(EOFError, ConnectionError),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(run(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
