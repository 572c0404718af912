"""Retained messages: one a topic, replaced, cleared, and gone when they expire."""

from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.expiries import Kept
from hookmq.store import DropPublisher, DropRetained, PutPublisher, PutRetained
from hookmq.types import ClientInfo, Direction, DropReason, Message

_TELL: Final = 60.0
"""Seconds between two log lines that there is no room."""


def retain(core: Core, message: Message, client: ClientInfo | None, allowed: float | None) -> bool:
    """Make `message` its topic's retained message, or clear it with an empty payload [MQTT-3.3.1-5 to 7]
    [MQTT311-3.3.1-5, 3.3.1-7, 3.3.1-10, 3.3.1-11]. Return whether that was done: False if there is no room for it.

    `client` published it, None for no client; that is `allowed` for so many seconds, None for good.
    """
    topic = message.topic
    limits = core.settings.broker
    known = core.retained.get(topic)
    if not message.payload:
        if known is not None:
            _clear(core, topic, known)
        return True
    publisher = None if client is None else core.publishers.find(client)
    freed = known.size if known is not None else 0
    kept = Kept(message, publisher)
    more = kept.size if publisher is None or publisher.uses else kept.size + publisher.size
    if (known is None and len(core.retained) >= limits.max_retained) or (
        core.retained_bytes - freed + more > limits.max_retained_bytes
    ):
        core.dropped(message, client, DropReason.RETAIN_LIMIT, Direction.IN)
        _tell_full(core, topic)
        return False
    if publisher is not None and allowed != 0:
        kept.rights = core.publishers.rights + publisher.rights
        if allowed is not None:
            kept.until = core.runtime.now() + allowed
    if publisher is not None and not publisher.uses:
        core.committer.add(PutPublisher(publisher.id, publisher.client.record()), publisher.size)
    hold(core, kept)
    core.committer.add(PutRetained(message, 0 if publisher is None else publisher.id), kept.size)
    core.observe_retained(topic, message)
    return True


def _tell_full(core: Core, topic: str) -> None:
    """Log that a message was not retained, once a minute at most: its publisher cannot be told."""
    now = core.runtime.now()
    if now < core.retained_told:
        return
    core.retained_told = now + _TELL
    core.runtime.log(
        "warning",
        "retained.full",
        topic=topic,
        messages=len(core.retained),
        bytes=core.retained_bytes,
    )


def hold(core: Core, kept: Kept) -> None:
    """Keep a retained message, new or loaded, until it is replaced, cleared or expired."""
    message = kept.message
    publisher = kept.publisher
    if publisher is not None and core.publishers.take(publisher):
        core.retained_bytes += publisher.size
    replaced = core.retained.set(message.topic, kept)
    core.retained_bytes += kept.size
    if replaced is not None:
        _release(core, replaced)
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
    publisher = known.publisher
    if publisher is not None and core.publishers.let_go(publisher):
        core.retained_bytes -= publisher.size
        core.committer.add(DropPublisher(publisher.id))
