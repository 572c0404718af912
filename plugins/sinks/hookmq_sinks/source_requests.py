"""Requests of operators to a source's process: test the origin, and replay or purge dead letters."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from hookmq.mqtt_api import Properties
from hookmq.plugin import ReasonCode

from hookmq_sinks.broker_socket import BrokerEnded, BrokerSocket
from hookmq_sinks.dead_letters import DeadLetter, DeadLetters, read_file
from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming
from hookmq_sinks.source_config import SourceConfig
from hookmq_sinks.source_wire import encode_frame, encode_message
from hookmq_sinks.trial import try_origin

_SLICE: Final = 100
"""The number of dead letters that are published at a time."""


class Refused(Exception):
    """A request was refused. The text says why."""


class SourceRequests:
    """Carries out requests, one task each. `opening` is held while the source opens its origin, and `connected` returns
    whether it has.
    """

    def __init__(
        self, config: SourceConfig, letters: DeadLetters, broker: BrokerSocket, opening: asyncio.Lock,
        connected: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._config = config
        self._letters = letters
        self._broker = broker
        self._opening = opening
        self._connected = connected
        self._replaying = False
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, told: dict[str, Any]) -> None:
        """Begin to carry out a request."""
        task = asyncio.get_running_loop().create_task(self._reply(told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, told: dict[str, Any]) -> None:
        try:
            self._broker.tell(reply=told["id"], value=await self._do(told["do"]))
        except (Refused, OSError, ValueError) as error:
            self._broker.tell(reply=told["id"], refused=str(error))
        except BrokerEnded:
            pass

    async def _do(self, what: str) -> Any:
        if what == "test":
            return [asdict(one) for one in await self._test()]
        if what == "purge":
            return await asyncio.to_thread(self._purge)
        if what == "replay":
            return await self._replay()
        raise Refused(f"cannot {what}")

    async def _test(self) -> list[Any]:
        """Return the problems of the origin. If the source is connected, there are none."""
        async with self._opening:
            return [] if self._connected() else await try_origin(self._config)

    def _purge(self) -> int:
        return sum(self._letters.remove(path) for path in self._letters.take())

    async def _replay(self) -> dict[str, int]:
        """Publish all dead letters again, oldest first. Those that are refused again remain."""
        if self._replaying:
            raise Refused("the dead letters are being replayed already")
        self._replaying = True
        written = failed = 0
        try:
            for path in await asyncio.to_thread(self._letters.take):
                found = await asyncio.to_thread(read_file, path)
                again: list[tuple[Record, str]] = []
                for start in range(0, len(found), _SLICE):
                    again += await self._publish(found[start : start + _SLICE])
                written += await asyncio.to_thread(self._letters.remove, path, again)
                failed += len(again)
        finally:
            self._replaying = False
        return {"written": written, "failed": failed}

    async def _publish(self, letters: Sequence[DeadLetter]) -> list[tuple[Record, str]]:
        """Publish dead letters. Return those that were refused, with the reasons."""
        again: dict[int, str] = {}
        packets: dict[int, bytes] = {}
        for at, letter in enumerate(letters):
            again[at] = letter.reason
            if not letter.broken:
                with suppress(ValueError):
                    packets[at] = encode_message(_incoming(letter.record))
        if packets:
            reply = await self._broker.ask(encode_frame(packets.values()))
            reasons = reply["reasons"]
            for number, (at, code) in enumerate(zip(packets, reply["codes"], strict=True)):
                if code < 0x80:
                    del again[at]
                else:
                    word = f"the broker refused it: {ReasonCode(code).text} (0x{code:02X})"
                    again[at] = reasons.get(str(number), word)
        return [(letters[at].record, reason) for at, reason in again.items()]


def _incoming(record: Record) -> Incoming:
    properties = Properties(
        content_type=record.content_type,
        response_topic=record.response_topic,
        correlation_data=record.correlation_data,
        user_property=record.user_properties or None,
    )
    return Incoming(record.topic, record.payload, record.qos, record.retain, properties)


__all__ = ["SourceRequests"]
