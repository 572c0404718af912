"""What every attack has in common: bytes that hurt, and what must hold whatever was tried."""

import json
from collections.abc import Iterable
from typing import Any

from hookmq.testing import Harness

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
    assert "Traceback" not in text
    assert "internal.error" not in text


def check_entries(entries: Iterable[dict[str, Any]]) -> None:
    """The same of a process's log."""
    check_silence("\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries))


def at_rest(harness: Harness) -> dict[str, int]:
    """Sizes of what attacks might leave behind."""
    core = harness.broker.core
    return {
        "connections": len(harness.broker.connections),
        "sessions": len(core.sessions),
        "groups": len(core.groups),
        "subscriptions": len(core.router),
        "queued": core.queued_bytes,
        "remembered": core.remembered,
        "fan_outs": len(core.fan_outs),
        "dirty": len(core.dirty),
        "deadlines": len(core.deadlines),
        "tasks": len(harness.clock.tasks),
        "calls": harness.hooks.in_flight(),
    }
