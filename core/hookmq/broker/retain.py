"""Retained messages: one a topic, replaced, cleared, and gone when they expire."""

from functools import partial

from hookmq.broker.core import Core
from hookmq.qos import Outgoing
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
    kept = Outgoing(message)
    if (known is None and len(core.retained) >= limits.max_retained) or (
        core.retained_bytes - freed + kept.size > limits.max_retained_bytes
    ):
        core.dropped(message, None, DropReason.RETAIN_LIMIT, Direction.IN)
        return
    core.retained_bytes -= freed
    hold(core, kept)
    core.committer.add(PutRetained(message), kept.size)
    core.observe_retained(topic, message)


def hold(core: Core, kept: Outgoing) -> None:
    """Keep a retained message until it is replaced, cleared or expired; one that is stored already, too."""
    message = kept.message
    core.retained.set(message.topic, kept)
    core.retained_bytes += kept.size
    expires_at = message.expires_at
    if expires_at is not None:
        # Named by topic and time, not by the message: one that was replaced must not stay for its deadline.
        delay = max(0.0, expires_at - core.runtime.time())
        core.deadlines.after(delay, partial(_expire, core, message.topic, expires_at))


def _expire(core: Core, topic: str, expires_at: float) -> None:
    known = core.retained.get(topic)
    if known is not None and known.message.expires_at == expires_at:
        _clear(core, topic, known)
        core.schedule()


def _clear(core: Core, topic: str, known: Outgoing) -> None:
    core.retained.delete(topic)
    core.retained_bytes -= known.size
    core.committer.add(DropRetained(topic))
    core.observe_retained(topic, None)
