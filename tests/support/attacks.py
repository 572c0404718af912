"""Shared helpers for the attack tests: hostile input, and the checks that must pass after every attack."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import mqttbytes as m
from hookmq.broker import Broker
from hookmq.hooks.manager import Hooks
from hookmq.model.settings import Settings
from hookmq.plugin import Plugin
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.logs import JsonFormatter
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from hookmq_testing import Harness
from hookmq_testing.harness import ALLOW

SECRET = "s3cr3t-Passw0rd"
PAYLOAD = b"payl0ad-not-to-be-logged"
TOKEN = "t0ken-not-to-be-logged"

HOSTILE_NAMES = (
    "../../etc/passwd", "..", ".", "a/../b", "a.b", "a%2fb", ">", "*", "+", "#", "$SYS", "$share/g/x", "-", "' OR 1=1",
    "a\nb", "\x1b[31m", "\x7f", "\ufeff", "\ufffe", "\U0010ffff", "e\u0301", "\u00e9", "\u202e", "null", "None", "0",
    "__class__", "__dict__", "__proto__", "constructor", "prototype", "toString", "{0}", "%s", "${jndi:x}", "s:x",
    "x" * 60000, "\u20ac" * 20000,
)  # fmt: skip
"""Client ids, user names, topics and filters that have a special meaning in some database, pattern or language."""


def spoken(harness: Harness) -> str:
    """Return all of the harness's log entries as text."""
    return "\n".join(f"{level} {event} {fields!r}" for level, event, fields in harness.logs)


def check_silence(text: str) -> None:
    """Assert that the text contains no secret, payload or token."""
    for word in (SECRET, PAYLOAD.decode(), TOKEN):
        assert word not in text
        assert word.encode().hex() not in text
    # Search for the first line of a traceback. On a busy machine, the stack of a blocked loop may contain the name
    # `TracebackException` (`loop.blocked`).
    assert "Traceback (most recent" not in text
    assert "internal.error" not in text


def check_entries(entries: Iterable[dict[str, Any]]) -> None:
    """Assert that a process's log entries contain no secret, payload or token."""
    check_silence("\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries))


def at_rest(harness: Harness) -> dict[str, int]:
    """Return the sizes of all data structures in which an attack could leave something behind."""
    core = harness.broker.state
    return {
        "connections": len(harness.broker.connections),
        "sessions": len(core.sessions),
        "groups": len(core.groups),
        "subscriptions": len(core.router),
        "queued": core.queued_bytes,
        "remembered": core.remembered,
        "fan_outs": len(core.fan_outs),
        "dirty": len(core.writes.dirty),
        "deadlines": len(core.deadlines),
        "tasks": len(harness.clock.tasks),
        "calls": harness.hooks.in_flight(),
    }


class Log(logging.Handler):
    """A logging handler that keeps the records of HookMQ, asyncio and aiohttp."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep all of HookMQ's records, and those of other libraries at WARNING or above."""
        if record.name.startswith("hookmq") or record.levelno >= logging.WARNING:
            self.records.append(record)

    def text(self) -> str:
        """Return all records in HookMQ's log format, without applying the filter that removes secrets."""
        return "\n".join(map(JsonFormatter().format, self.records))

    def events(self) -> list[str]:
        """Return the names of the logged events."""
        return [str(getattr(record, "event", record.name)) for record in self.records]


@asynccontextmanager
async def house(
    *listeners: ListenerSettings, settings: Settings | None = None, plugins: Iterable[Plugin] = ()
) -> AsyncIterator[tuple[Server, Log]]:
    """Run a server with real sockets on free ports.

    On exit, assert that no internal error occurred, no client is left and no secret is in the log.
    """
    root, log = logging.getLogger(), Log()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    runtime = AsyncioRuntime()
    broker = Broker(settings or ALLOW, runtime, Hooks.of(*plugins))
    node = Server(broker, listeners, runtime)
    try:
        await node.start()
        yield node, log
        await node.stop()
    finally:
        await runtime.close()
        root.removeHandler(log)
        root.setLevel(level)
    bad = [one for one in log.records if one.levelno >= logging.ERROR]
    assert not bad, [JsonFormatter().format(one) for one in bad]
    check_silence(log.text())
    assert not any(node.connections().values())
    assert not broker.connections


async def dial(node: Server, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to a listener."""
    host, _, port = node.addresses()[name].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes received until the connection is closed or reset."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection and wait until it is closed."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


async def serves(node: Server, name: str = "tcp") -> None:
    """Assert that the server still serves a well-behaved client."""
    reader, writer = await dial(node, name)
    writer.write(m.connect("well-behaved"))
    async with asyncio.timeout(60):
        assert (await reader.readexactly(2))[:1] == b"\x20"
        writer.write(m.disconnect())
        await read_all(reader)
    await hang_up(writer)
