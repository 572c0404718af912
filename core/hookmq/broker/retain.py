"""Retained messages: one a topic, replaced, cleared, and gone when they expire."""

from hookmq.broker.core import Core
from hookmq.broker.expiries import Kept
from hookmq.store import DropRetained, PutRetained
from hookmq.types import Direction, DropReason, Message


def retain(core: Core, message: Message) -> None:
    """Make `message` its topic's retained message, or clear it with an empty payload [MQTT-3.3.1-5 to 7]
    [MQTT311-3.3.1-5, 3.3.1-7, 3.3.1-10, 3.3.1-11]."""
    topic = message.topic
    limits = core.settings.broker
    known = core.retained.get(topic)
    if not message.payload:
        if known is not None:
            _clear(core, topic, known)
        return
    freed = known.size if known is not None else 0
    kept = Kept(message)
    if (known is None and len(core.retained) >= limits.max_retained) or (
        core.retained_bytes - freed + kept.size > limits.max_retained_bytes
    ):
        core.dropped(message, None, DropReason.RETAIN_LIMIT, Direction.IN)
        return
    hold(core, kept)
    core.committer.add(PutRetained(message), kept.size)
    core.observe_retained(topic, message)


def hold(core: Core, kept: Kept) -> None:
    """Keep a retained message, new or loaded, until it is replaced, cleared or expired."""
    message = kept.message
    replaced = core.retained.set(message.topic, kept)
    if replaced is not None:
        _release(core, replaced)
    core.retained_bytes += kept.size
    if message.expires_at is not None:
        kept.expiry = core.expiries.add(message.expires_at, message.topic)


def expire(core: Core, topic: str) -> None:
    """Clear the message of `topic`, whose time has come."""
    known = core.retained.get(topic)
    if known is not None:
        _clear(core, topic, known)
        core.schedule()


def _clear(core: Core, topic: str, known: Kept) -> None:
    core.retained.delete(topic)
    _release(core, known)
    core.committer.add(DropRetained(topic))
    core.observe_retained(topic, None)


def _release(core: Core, known: Kept) -> None:
    """Let go of what a message took that is retained no more."""
    core.retained_bytes -= known.size
    if known.expiry is not None:
        core.expiries.cancel(known.expiry)
        known.expiry = None
