"""What every attack has in common: bytes that hurt, and what must hold whatever was tried."""

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
"""Client ids, user names, topics and filters that have meant something to somebody's storage, pattern or language."""


def spoken(harness: Harness) -> str:
    """Everything that was logged."""
    return "\n".join(f"{level} {event} {fields!r}" for level, event, fields in harness.logs)


def check_silence(text: str) -> None:
    """No secret, payload or token is in a log."""
    for word in (SECRET, PAYLOAD.decode(), TOKEN):
        assert word not in text
        assert word.encode().hex() not in text
    # Its first line, for the stack of a loop that a busy machine held up may name `TracebackException` (`loop.blocked`).
    assert "Traceback (most recent" not in text
    assert "internal.error" not in text


def check_entries(entries: Iterable[dict[str, Any]]) -> None:
    """The same of a process's log."""
    check_silence("\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries))


def at_rest(harness: Harness) -> dict[str, int]:
    """Sizes of what attacks might leave behind."""
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
    """Keeps what HookMQ, asyncio and aiohttp log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, if it would be written: libraries tell only what matters."""
        if record.name.startswith("hookmq") or record.levelno >= logging.WARNING:
            self.records.append(record)

    def text(self) -> str:
        """All of it, as HookMQ writes it, but without the filter that takes secrets out."""
        return "\n".join(map(JsonFormatter().format, self.records))

    def events(self) -> list[str]:
        """The names of events."""
        return [str(getattr(record, "event", record.name)) for record in self.records]


@asynccontextmanager
async def house(
    *listeners: ListenerSettings, settings: Settings | None = None, plugins: Iterable[Plugin] = ()
) -> AsyncIterator[tuple[Server, Log]]:
    """A node behind real sockets, on free ports. At its end nothing may have gone wrong inside and nobody be left; and
    no secret is in its log."""
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
    """A connection to a listener."""
    host, _, port = node.addresses()[name].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection ends, however it ends."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close, and wait until it is."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


async def serves(node: Server, name: str = "tcp") -> None:
    """A well-behaved client is served."""
    reader, writer = await dial(node, name)
    writer.write(m.connect("well-behaved"))
    async with asyncio.timeout(60):
        assert (await reader.readexactly(2))[:1] == b"\x20"
        writer.write(m.disconnect())
        await read_all(reader)
    await hang_up(writer)
