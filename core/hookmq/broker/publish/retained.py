"""Retained messages, one per topic: set them, clear them, and remove them when they expire."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from hookmq.broker.retained_expiry import Kept
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.storage.records import DropPublisher, DropRetained, PutPublisher, PutRetained

_TELL: Final = 60.0
"""Seconds between two log lines about a lack of room for retained messages."""
_SLICE: Final = 256
"""Messages that `clear_matching` clears in one turn."""
_SKIPPED: Final = 32
"""The number of messages that a step without a match counts as, because it takes as long as clearing them."""


def set_retained(
    state: BrokerState,
    message: Message,
    client: ClientInfo | None,
    allowed: float | None,
    volatile: bool = False,
) -> bool:
    """Retain `message` for its topic, or clear the topic if its payload is empty [MQTT-3.3.1-5 to 7] [MQTT311-3.3.1-5,
    3.3.1-7, 3.3.1-10, 3.3.1-11]. Return False if there is no room for the message.

    `client` is the publisher, or None if it is not a client. Its permission holds for `allowed` seconds; None means
    without limit. A `volatile` message is held in memory only, and the record of the message that it replaces is removed.
    """
    topic = message.topic
    state.work += topic.count("/") >> 4  # the index has a node for each level
    limits = state.settings.broker
    known = state.retained.get(topic)
    if not message.payload:
        if known is not None:
            clear(state, topic, known)
        return True
    publisher = None if client is None else state.publishers.find(client)
    freed = known.size if known is not None else 0
    kept = Kept(message, publisher, volatile)
    more = kept.size if publisher is None or publisher.uses else kept.size + publisher.size
    if (known is None and len(state.retained) >= limits.max_retained) or (
        state.retained_bytes - freed + more > limits.max_retained_bytes
    ):
        state.dropped(message, client, DropReason.RETAIN_LIMIT, Direction.IN)
        _tell_full(state, topic)
        return False
    if publisher is not None and allowed != 0:
        kept.rights = state.publishers.rights + publisher.rights
        if allowed is not None:
            kept.until = state.runtime.now() + allowed
    if volatile:
        if known is not None and not known.volatile:
            state.committer.add(DropRetained(topic))  # a restart must not bring it back
        keep_retained(state, kept)
    else:
        if publisher is not None and not publisher.recorded:
            publisher.recorded = True
            record = PutPublisher(publisher.id, publisher.client.record())
            state.committer.add(record, publisher.size)
        keep_retained(state, kept)
        number = 0 if publisher is None else publisher.id
        state.committer.add(PutRetained(message, number), kept.size)
    state.observe_retained(topic, message)
    return True


def _tell_full(state: BrokerState, topic: str) -> None:
    """Log that a message was not retained, at most once a minute, because its publisher cannot be notified."""
    now = state.runtime.now()
    if now < state.retained_told:
        return
    state.retained_told = now + _TELL
    state.runtime.log(
        "warning",
        "retained.full",
        topic=topic,
        messages=len(state.retained),
        bytes=state.retained_bytes,
    )


def keep_retained(state: BrokerState, kept: Kept) -> None:
    """Keep a retained message, new or loaded, until it is replaced, cleared or expired."""
    message = kept.message
    publisher = kept.publisher
    if publisher is not None and state.publishers.take(publisher):
        state.retained_bytes += publisher.size
    replaced = state.retained.set(message.topic, kept)
    state.retained_bytes += kept.size
    if replaced is not None:
        _release(state, replaced)
    if message.expires_at is not None:
        kept.expiry = state.expiries.add(message.expires_at, message.topic)


def expire(state: BrokerState, topic: str) -> None:
    """Clear the expired message of `topic`."""
    known = state.retained.get(topic)
    if known is not None:
        # Every node of a cluster does this. A record could remove the message that another node has just set.
        clear(state, topic, known, state.cluster is None)
        state.writes.schedule()


def clear_matching(
    state: BrokerState,
    filter: str,
    done: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> None:
    """Clear every retained message that `filter` matches, a slice per turn. After the commit, call `done` with the
    number of cleared messages. After an internal error, call `failed` instead. Nothing is sent to subscribers.
    """
    _clear_slice(state, state.retained.scan(filter), 0, done, failed)


def _clear_slice(
    state: BrokerState,
    found: Iterator[tuple[str, Kept] | None],
    count: int,
    done: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> None:
    """Clear one slice of the messages in `found`. `count` messages have been cleared so far."""
    try:
        count, more = _clear_some(state, found, count)
    except Exception as error:
        failed(error)
        raise
    if more:
        again = partial(_clear_slice, state, found, count, done, failed)
        state.runtime.call_soon(partial(state.guarded, again))
    else:
        state.committer.after_commit(partial(done, count))
    state.writes.schedule()


def _clear_some(
    state: BrokerState, found: Iterator[tuple[str, Kept] | None], count: int
) -> tuple[int, bool]:
    """Clear the next messages. Return how many have been cleared so far, and whether there may be
    more.
    """
    left = _SLICE
    for item in found:
        if item is None:
            left -= _SKIPPED
        else:
            clear(state, item[0], item[1])
            count += 1
            left -= 1
        if left <= 0:
            return count, True
    return count, False


def clear(state: BrokerState, topic: str, known: Kept, record_it: bool = True) -> None:
    """Remove the retained message `known`, and notify observers."""
    state.retained.delete(topic)
    _release(state, known)
    if record_it and not known.volatile:
        state.committer.add(DropRetained(topic))
    state.observe_retained(topic, None)


def _release(state: BrokerState, known: Kept) -> None:
    """Release the resources of a message that is no longer retained."""
    state.retained_bytes -= known.size
    if known.expiry is not None:
        state.expiries.cancel(known.expiry)
        known.expiry = None
    publisher = known.publisher
    if publisher is not None and state.publishers.let_go(publisher):
        state.retained_bytes -= publisher.size
        if publisher.recorded:
            publisher.recorded = False
            state.committer.add(DropPublisher(publisher.id))
