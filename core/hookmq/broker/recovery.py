"""Rebuild sessions, queues, retained messages and plugin state from the store when the broker starts."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from hookmq.broker.delivery.queue import restore
from hookmq.broker.publish.retained import keep_retained
from hookmq.broker.retained_expiry import Kept
from hookmq.broker.sessions.lifecycle import (
    account_connect,
    create,
    return_shared,
    schedule_end,
    schedule_will,
)
from hookmq.broker.sessions.session_record import record
from hookmq.broker.sessions.subscriptions import drop_orphaned, subscribe
from hookmq.broker.state import BrokerState
from hookmq.model.errors import StoreError
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Delivery, Outgoing
from hookmq.session.session import Session
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import (
    DropPublisher,
    Enqueue,
    Loaded,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    Queued,
    QueueSummary,
    SessionRecord,
)

_FIRST: Final = -(1 << 62)
"""A sequence number lower than that of any queue entry."""
_PAGE: Final = 1000
_PAGE_BYTES: Final = 1 << 24
"""The number of entries, and the number of bytes, to read at a time."""


Groups = list[SharedSubscription]


def recover(state: BrokerState, done: Callable[[BaseException | None, Groups], None]) -> None:
    """Load the state from the store, then call `done` with an error and a list.

    If the load succeeds, the error is None, and the list contains the shared subscriptions that have a queue but no
    members. Otherwise the error is the StoreError that prevents the broker from starting.

    Recovery calls no hooks. `begin` starts the work that may call hooks.
    """
    try:
        last = state.store.last_commit()
        for journal in state.journals:
            journal.recover(last)
        waiting = load(state, state.store.load())
    except StoreError as error:
        done(error, [])
        return
    owners = {group.owner for group in state.groups.values()}
    strategy = state.settings.broker.shared_strategy
    # These groups have a queue but no members: their members' sessions ended with the process.
    orphans = [SharedSubscription("", "", one, strategy) for one in waiting if one not in owners]

    def loaded(failed: StoreFailed | None) -> None:
        if failed is not None:
            done(StoreError(failed.reason), [])
            return
        for session in state.sessions.values():
            return_shared(state, session)  # no member is online
        state.plugin_states.loaded = True
        done(None, orphans)

    GroupQueues(state, [*state.groups.values(), *orphans], loaded).load()


def begin(state: BrokerState, orphans: Groups) -> None:
    """Drop the queues of `orphans` and set the deadlines of the sessions that `recover` loaded. Report any stored state
    of plugins that are not configured.
    """
    configured = {one.id for one in state.hooks.plugins}
    unused = [
        name
        for name, space in state.plugin_states.spaces.items()
        if space.keys and name not in configured
    ]
    if unused:
        state.runtime.log("info", "plugin.state_unused", plugins=sorted(unused))
    for group in orphans:
        drop_orphaned(state, group)
    set_deadlines(state, state.sessions.values())


def load(state: BrokerState, records: Iterable[Loaded]) -> list[str]:
    """Load everything except the queues of shared subscriptions. Return the owners of these queues."""
    shared: dict[int, Outgoing] = {}
    messages: dict[int, Message] = {}
    queues: dict[str, QueueSummary] = {}
    for item in records:
        # The most frequent records come first.
        if isinstance(item, PutRetained):
            publisher = state.publishers.get(item.publisher) if item.publisher else None
            if item.publisher and publisher is None:
                raise StoreError(f"the publisher of retained {item.message.topic!r} is missing")
            keep_retained(state, Kept(item.message, publisher))
        elif isinstance(item, PutPublisher):
            state.publishers.load(item.id, item.client)
        elif isinstance(item, PutSubscription):
            subscribe(state, state.sessions[item.client_id], item.subscription)
        elif isinstance(item, PutSession):
            _load_session(state, item.session)
        elif isinstance(item, PutReceived):
            session = state.sessions[item.client_id]
            if session.received is None:
                session.received = set()
            session.received.add(item.packet_id)
        elif isinstance(item, PutMessage):
            messages[item.id] = item.message
        elif isinstance(item, Enqueue):
            found = state.sessions.get(item.owner[2:])
            if found is not None:
                delivery = restore(state, found, item, messages[item.message_ref], shared)
                found.inflight[item.packet_id] = delivery
                found.last_seq = max(found.last_seq, item.seq)
                found.loaded_seq = max(found.loaded_seq, item.seq)
                found.last_packet_id = item.packet_id
        elif isinstance(item, PutState):
            state.plugin_states.load(item)
        elif isinstance(item, QueueSummary):
            queues[item.owner] = item
    for owner, summary in queues.items():
        waiting = state.sessions.get(owner[2:]) if owner.startswith("c/") else None
        if waiting is not None:
            waiting.stored = waiting.queued = summary.entries
            waiting.queued_bytes = summary.size
            state.queued_bytes += summary.size
            waiting.last_seq = max(waiting.last_seq, summary.last_seq)
    for unused in state.publishers.unused():
        state.committer.add(DropPublisher(unused.id))
    return [owner for owner in queues if owner.startswith("g/")]


def _load_session(state: BrokerState, kept: SessionRecord) -> None:
    settings = state.settings.session
    session = create(state, kept.client.client())
    state.metrics.sessions_created -= 1
    session.expiry = kept.expiry
    session.durable = session.recorded = True
    session.ended_at = kept.ended_at
    session.will = kept.will
    session.will_at = kept.will_at
    account_connect(state, session)
    session.revoked = set(kept.revoked) or None
    session.queue_messages = kept.limits.get("queue_messages", settings.queue_messages)
    session.max_subscriptions = kept.limits.get("max_subscriptions", settings.max_subscriptions)
    if session.ended_at is None:
        # The client was online when the process died. The time of the crash is unknown, so the client counts as offline
        # from now on. Record this time: another crash must not prolong the session or delay its will.
        now = session.ended_at = state.runtime.time()
        if session.will is not None:
            delay = min(session.will.delay, settings.max_will_delay, session.expiry)
            session.will_at = now + delay
        state.committer.add(record(session))
    elif session.will is not None and session.will_at is None:
        session.will_at = state.runtime.time()  # it was being published during the crash


def set_deadlines(state: BrokerState, sessions: Iterable[Session]) -> None:
    """Set when loaded sessions expire and when their wills are due."""
    now = state.runtime.time()
    for session in list(sessions):
        # A plugin may have used a session in `on_startup`; its deadlines are set already.
        if session.ended_at is not None and session.connection is None:
            if session.will_at is not None and session.will_due is None:
                schedule_will(state, session, max(0.0, session.will_at - now))
            if session.expiry_due is None:
                schedule_end(state, session, max(0.0, session.ended_at + session.expiry - now))


class GroupQueues:
    """Loads the queues of shared subscriptions page by page, from synchronous and asynchronous stores."""

    __slots__ = ("_after", "_answered", "_done", "_failed", "_left", "_running", "_state")

    def __init__(
        self,
        state: BrokerState,
        groups: list[SharedSubscription],
        done: Callable[[StoreFailed | None], None],
    ) -> None:
        self._state = state
        self._left = deque(groups)
        self._done = done
        self._after = _FIRST
        self._running = False
        self._answered = False
        self._failed: StoreFailed | None = None

    def load(self) -> None:
        """Load the remaining queues, then call `done` with the failure or None."""
        self._running = True
        while self._left and self._failed is None:
            self._answered = False
            owner = self._left[0].owner
            self._state.store.read(owner, self._after, _PAGE, _PAGE_BYTES, self._loaded)
            if not self._answered:
                self._running = False
                return
        self._done(self._failed)

    def _loaded(self, page: list[Queued] | StoreFailed) -> None:
        self._answered = True
        if isinstance(page, StoreFailed):
            self._failed = page
        elif page:
            self._add(self._left[0], page)
        else:
            self._left.popleft()
            self._after = _FIRST
        if not self._running:
            self.load()

    def _add(self, group: SharedSubscription, page: list[Queued]) -> None:
        unknown = Subscription("", "")
        for entry, message in page:
            outgoing = Outgoing(message, entry.message_ref)
            delivery = Delivery(outgoing, entry.qos, False, (), unknown, group, entry.seq)
            delivery.weight = entry.size
            group.queue.append(delivery)
            group.waits(entry.size)
            self._state.queued_bytes += entry.size
            group.first_seq = min(group.first_seq, entry.seq)
            group.last_seq = max(group.last_seq, entry.seq)
            self._after = entry.seq
