"""Expire queued messages in the store while their clients are offline.

While a queue is being sent, expired messages are dropped from its head [MQTT-3.3.2-5]. All other queues are searched
once a minute, if the store can find expired entries (`ExpiringStore`). One page of entries is dropped per commit: this
frees disk space and the session's quota without a long turn.
"""

from collections import deque
from functools import partial
from typing import Final

from hookmq.broker.delivery.completion import complete
from hookmq.broker.delivery.queue import account_dequeued
from hookmq.broker.delivery.shared import dequeue_shared
from hookmq.broker.state import BrokerState
from hookmq.model.events import Direction, DropReason
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Delivery
from hookmq.session.session import Session
from hookmq.storage.protocols import ExpiredEntries, ExpiringStore, StoreFailed
from hookmq.storage.records import Dequeue

EVERY: Final = 60.0
"""The number of seconds between the end of one search and the start of the next."""
SLICE: Final = 256
"""Entries to drop in one turn."""

Found = dict[int, int]
"""Message ids of queue entries, by sequence number."""


def watch_expiry(state: BrokerState) -> None:
    """Search regularly for expired entries, if the store can find them."""
    if isinstance(state.store, ExpiringStore):
        state.deadlines.after(EVERY, partial(_search, state, state.store, None))


def _search(state: BrokerState, store: ExpiringStore, place: object) -> None:
    if state.failed is not None:
        return
    # The search may also find entries of sessions that end from now on, or whose end is not recorded yet. They must be
    # ignored: a new session may have a queue of the same name by then.
    state.ended_meanwhile = set(state.ending)
    store.expired(state.runtime.time(), place, SLICE, partial(_found, state, store))


def _found(state: BrokerState, store: ExpiringStore, result: ExpiredEntries | StoreFailed) -> None:
    if isinstance(result, StoreFailed):
        state.committer.fail(result.reason)
        return
    ended, state.ended_meanwhile = state.ended_meanwhile or (), None
    owners: dict[str, list[tuple[int, int, int]]] = {}
    for owner, seq, size, message in result.entries:
        owners.setdefault(owner, []).append((seq, size, message))
    held: list[Session] = []
    for owner, entries in owners.items():
        if owner.startswith("g/"):
            share, _, topic_filter = owner[2:].partition("/")
            group = state.groups.get((share, topic_filter))
            if group is not None:
                _drop_of_group(state, group, {seq: message for seq, _, message in entries})
            continue
        session = state.sessions.get(owner[2:])
        # A page being read may hold the same entries. They are dropped when they leave the queue.
        if session is None or session.loading or session.client_id in ended:
            continue
        if _drop(state, session, entries):
            # No page may be read before these entries are gone from the store.
            session.loading = True
            session.on_page = None
            held.append(session)
    state.committer.after_commit(partial(_committed, state, store, result.place, held))
    state.writes.schedule()


def _committed(
    state: BrokerState, store: ExpiringStore, place: object, held: list[Session]
) -> None:
    """Continue the search after the entries have been removed from the store, and let the sessions read pages again."""
    for session in held:
        if state.sessions.get(session.client_id) is session:
            session.loading = False
            then, session.on_page = session.on_page, None
            if then is not None:
                then(state, session)
    if place is None:
        watch_expiry(state)
    else:
        state.runtime.call_soon(partial(state.guarded, partial(_search, state, store, place)))
    state.writes.schedule()


def _drop(state: BrokerState, session: Session, entries: list[tuple[int, int, int]]) -> bool:
    """Remove expired entries from a session's queue. Return whether any of them were only in the store."""
    loaded: Found = {}
    stored = 0
    for seq, size, message_id in entries:
        if seq <= session.loaded_seq:
            loaded[seq] = message_id
            continue
        stored += 1
        session.queued -= 1
        session.queued_bytes -= size
        state.queued_bytes -= size
        state.committer.add(Dequeue(session.owner, seq))
    if stored:
        session.stored -= stored
        state.metrics.count_drop(DropReason.EXPIRED, Direction.OUT, stored)
    if loaded and session.queue:
        for delivery in _take(session.queue, loaded):
            account_dequeued(state, session, delivery, counted=True)
            complete(state, session, delivery)
            message = delivery.outgoing.message
            state.dropped(message, session.client, DropReason.EXPIRED, Direction.OUT)
    return stored > 0


def _drop_of_group(state: BrokerState, group: SharedSubscription, found: Found) -> None:
    for delivery in _take(group.queue, found):
        dequeue_shared(state, group, delivery)
        message = delivery.outgoing.message
        state.dropped(message, None, DropReason.EXPIRED, Direction.OUT, group.owner)


def _take(queue: deque[Delivery], found: Found) -> list[Delivery]:
    """Remove the deliveries listed in `found` that are still in `queue` with the same message, and return them."""
    taken = [one for one in queue if one.seq in found and one.outgoing.id == found[one.seq]]
    if taken:
        gone = {one.seq for one in taken}
        kept = [one for one in queue if one.seq not in gone]
        queue.clear()
        queue.extend(kept)
    return taken
