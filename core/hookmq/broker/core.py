"""What the whole broker shares: sessions, routes, retained messages, the commit point and the turn of the loop.

Every module of this package takes a `Core` and changes it; none keeps state of its own. At the end of a turn everything
that happened in it is committed as one batch and written with one write per connection.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from hookmq.broker.committer import Committer, entry_of
from hookmq.broker.deadlines import Deadlines
from hookmq.broker.expiries import Expiries, Kept
from hookmq.broker.groups import Group
from hookmq.broker.parking import Parking
from hookmq.broker.publishers import Publishers
from hookmq.broker.routes import Route, Subscriber, Target
from hookmq.codec import Limits
from hookmq.hooks.chains import Chains, narrow
from hookmq.hooks.depth import at_depth
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.specs import OBSERVERS, BrokerHandle
from hookmq.metrics import Metrics
from hookmq.qos import Delivery, Outgoing
from hookmq.reason import ReasonCode
from hookmq.retained import RetainedIndex
from hookmq.router import Router
from hookmq.runtime import Runtime, Timer
from hookmq.session import CLEAN, DIRTY, Session
from hookmq.settings import Settings
from hookmq.store import Enqueue, Journal, MemoryStore, PutMessage, Store
from hookmq.types import Action, ClientInfo, Direction, Dropped, DropReason, Message, Subscription

_LOOK: Final = 0.001
"""A batch that waits for receivers, who may take messages out of it, is looked at again after so many seconds."""
_LOOKS: Final = 4
"""How often, while they do."""
_WORTH: Final = 64
"""Messages from which on that is worth it: fewer are recorded before the others have answered."""
_IMPATIENT: Final = 4
"""Commits that do not wait, after one waited for nothing."""

_DENIALS = 1000
"""Clients whose denials are counted between two lines of the log."""


def _observed(hooks: Hooks) -> frozenset[str]:
    return frozenset(
        name
        for name in OBSERVERS
        if any(not one.instance.disabled for one in hooks.registry.get(name, ()))
    )


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


class Core:
    """Shared state of one broker; see the module's text."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        hooks: Hooks,
        store: Store | None,
        journals: Sequence[Journal] | None,
        metrics: Metrics,
        handles: Callable[["Core"], Callable[[PluginInstance], BrokerHandle]],
    ) -> None:
        self.settings = settings
        self.runtime = runtime
        self.hooks = hooks
        hooks.bind(runtime, handles(self))
        self.observed = _observed(hooks)
        """Observer hooks that some plugin implements; the others cost one test."""
        self.metrics = metrics
        self.limits = Limits(
            settings.broker.max_packet_size,
            settings.broker.max_user_properties,
            settings.broker.max_filters,
            settings.broker.text == "strict",
        )
        self.largest_packet = settings.broker.max_packet_size
        """Bytes that some connection may send in one packet: a reload lowers it for new ones only."""
        self.deadlines = Deadlines(runtime, self.guarded)
        self.sessions: dict[str, Session] = {}
        self.ending: dict[str, int] = {}
        """How many sessions of a client have ended, and their end is not yet on record."""
        self.undecided_wills: dict[str, tuple[Any, ...]] = {}
        """Wills that nobody could decide about yet (`wills.DueWill`), by client id."""
        self.undecided_will_bytes = 0
        self.ended_meanwhile: set[str] | None = None
        """Clients whose sessions ended while expired messages are looked for; None while they are not."""
        self.groups: dict[tuple[str, str], Group] = {}
        self.retained: RetainedIndex[Kept] = RetainedIndex()
        self.retained_bytes = 0
        self.retained_told = 0.0
        """When the log may say again that there is no room for retained messages."""
        self.publishers = Publishers()
        self.expiries: Expiries  # set by the broker, which knows how a message is cleared
        self.router: Router[Subscriber, Subscription, Route] = Router(
            self._compile, max_levels=settings.broker.max_topic_levels
        )
        if store is None:
            store = hooks.provide_store(settings) or MemoryStore(runtime.token(8))
        self.store = store
        self.recording = type(store) is not MemoryStore
        """Whether queues and packet ids go through the store. The one in memory would only hold a second time, for as
        long, what sessions hold themselves."""
        self.journals = hooks.provide_journals(settings) if journals is None else tuple(journals)
        self.committer = Committer(
            store,
            self.journals,
            self._commit_failed,
            self.guarded,
            self._commit_more,
            self._put_sent,
        )
        self.parking = Parking(self.deadlines, self.guarded, self.schedule)
        self.next_message_id = store.next_message_id()
        self.session_bytes = 0
        """Bytes that sessions hold of what their clients sent: ids, user names, wills, filters."""
        self.queued_bytes = 0
        self.loaded_bytes = 0
        """Of those, what the queues of sessions hold in memory; a message in several counts for each."""
        self.pause: Timer | None = None
        """Until when a commit is put off."""
        self._looks = self._first = self._last = 0
        self._impatience = 0
        self.dirty: list[Session] = []
        self.scheduled = False
        self.turn = 0
        self.write_room = settings.broker.max_write_buffer
        """Bytes that may wait for one client between two writes."""
        self.shared = 0
        """Bytes that came since the last write. Packets are handed on as they came, so no receiver has more of them."""
        self.work = 0
        """Steps done so far: a receiver served, a filter subscribed to, a few KiB encoded. They bound what one client
        causes in a turn."""
        self.fan_outs: dict[str, deque[Any]] = {}
        """Large fan-outs on their way, by topic."""
        self.fan_order: deque[str] = deque()
        """Their topics, in the order in which they are served."""
        self.collecting: Any = None
        """The one of them whose queue entries the commit waits for; None for none."""
        self.after_collecting: deque[Callable[[], None]] = deque()
        """Messages that would be collected too: each waits until the one before is done."""
        self.draining = False
        self.shortcuts = True
        """False sends every packet the long way: tests compare what comes of it."""
        self.remembered = 0
        """Decisions and fast paths remembered by all connections together."""
        self.denials: dict[str, tuple[float, int]] = {}
        self.failed: str | None = None
        self.on_drop: (
            Callable[[Message | None, ClientInfo | None, DropReason, Direction, str], None] | None
        )
        self.on_drop = None
        """Told of every drop at once, of those of no message too: observers are told later. The simulator needs it."""
        self.later: list[Callable[[], None]] = []
        """What observers are told once what this turn has for clients has left, and before anything newer."""
        self.on_failure: Callable[[str], None] | None = None
        """Told once when a commit failed: the shell tells clients and ends the process."""

    def use(self, settings: Settings, hooks: Hooks) -> None:
        """Go on with other settings and hooks: every route and every remembered decision is made anew."""
        if self.later:
            self.tell()
        self.settings = settings
        self.hooks = hooks
        self.observed = _observed(hooks)
        self.limits = Limits(
            settings.broker.max_packet_size,
            settings.broker.max_user_properties,
            settings.broker.max_filters,
            settings.broker.text == "strict",
        )
        self.largest_packet = max(self.largest_packet, settings.broker.max_packet_size)
        self.write_room = settings.broker.max_write_buffer
        self.router.clear_cache()

    # --- the turn --------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Have `end_turn` run at the end of this turn."""
        if not self.scheduled:
            self.scheduled = True
            self.runtime.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Commit what this turn changed, then write what may leave, once per connection."""
        self.scheduled = False
        self.turn += 1
        self._commit_more()
        self._leave()

    def _leave(self) -> None:
        self.flush()
        if self.later:
            self.runtime.call_soon(self.tell)

    def _commit_more(self) -> None:
        if not self._pauses():
            self.committer.flush()

    def commit_now(self) -> None:
        """Commit what has collected, without a pause."""
        pause, self.pause = self.pause, None
        if pause is not None:
            pause.cancel()
        self.committer.flush()

    def _pauses(self) -> bool:
        """Whether to put a commit off for a moment. Many messages were sent to clients that may be about to acknowledge
        them: those that are need no record, and a millisecond is less than a disk takes for them."""
        committer = self.committer
        fresh = committer.fresh
        pause = self.pause
        if pause is not None:
            if fresh:
                return True
            pause.cancel()
            self.pause = None
            return False
        if fresh < _WORTH or committer.running:
            return False
        if self._impatience:
            self._impatience -= 1
            return False
        self._looks = 0
        self._first = self._last = fresh
        self.pause = self.runtime.call_later(_LOOK, self._paused)
        return True

    def _paused(self) -> None:
        self.pause = None
        fresh = self.committer.fresh
        self._looks += 1
        if fresh and self._looks < _LOOKS and (self._looks == 1 or fresh < self._last):
            self._last = fresh
            self.pause = self.runtime.call_later(_LOOK, self._paused)
            return
        if fresh > self._first // 2:
            self._impatience = _IMPATIENT
        self.committer.flush()
        self._leave()

    def flush(self) -> None:
        """One write for every session with packets."""
        self.shared = 0
        dirty = self.dirty
        if not dirty:
            return
        self.dirty = []
        metrics = self.metrics
        sent = 0
        for session in dirty:
            if session.state == DIRTY:
                session.state = CLEAN
            session.unsent = 0
            out = session.out
            connection = session.connection
            if connection is not None and out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                sent += len(data)
                connection.wire.write(data)
        metrics.bytes_sent += sent
        metrics.writes += len(dirty)

    def mark(self, session: Session) -> None:
        """Have `session.out` written at the end of this turn."""
        if session.state == CLEAN:
            session.state = DIRTY
        elif session.state == DIRTY:
            return
        self.dirty.append(session)
        if not self.scheduled:
            self.scheduled = True
            self.runtime.call_soon(self.end_turn)

    def put(self, session: Session, size: int) -> None:
        """Have `session.out`, which has grown by `size` bytes, written at the end of this turn. Write at once when much
        waits: the transport then tells in this turn that the client does not read."""
        if session.state != DIRTY:
            self.mark(session)
        unsent = session.unsent = session.unsent + size
        if unsent > self.write_room:
            self.write(session)

    def share(self, size: int) -> None:
        """Count bytes that each receiver may have been handed, and write when that is much; see `put`."""
        self.shared += size
        if self.shared > self.write_room:
            self.flush()

    def write(self, session: Session) -> None:
        """Write now what this turn has for `session`."""
        session.unsent = 0
        out = session.out
        connection = session.connection
        if connection is not None and out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self.metrics.bytes_sent += len(data)
            self.metrics.writes += 1
            connection.wire.write(data)

    # --- the store -------------------------------------------------------------------------------------------------

    def keep(self, outgoing: Outgoing) -> int:
        """The message's id in the store; the first call puts the message into the batch, to be followed by the queue
        entry that needs it."""
        if outgoing.id == 0:
            outgoing.id = self.next_message_id
            self.next_message_id += 1
            outgoing.place = self.committer.place()
            self.committer.add(PutMessage(outgoing.id, outgoing.message), outgoing.size)
        outgoing.uses += 1
        return outgoing.id

    def _put_sent(self, delivery: Delivery) -> tuple[PutMessage, Enqueue]:
        outgoing = delivery.outgoing
        outgoing.id = self.next_message_id
        self.next_message_id += 1
        outgoing.uses = 1
        return PutMessage(outgoing.id, outgoing.message), entry_of(
            delivery.owner, delivery, outgoing.id
        )

    def _commit_failed(self, reason: str) -> None:
        # Nothing that waited is acknowledged, now or later: a retried fsync may lie.
        self.failed = reason
        self.runtime.log("error", "store.failed", reason=reason)
        if self.on_failure is not None:
            self.on_failure(reason)

    # --- what happened ---------------------------------------------------------------------------------------------

    def dropped(
        self,
        message: Message | None,
        client: ClientInfo | None,
        reason: DropReason,
        direction: Direction,
        detail: str = "",
    ) -> None:
        """Count a message that goes no further and tell whoever observes; `client` is the publisher (in) or the
        receiver (out)."""
        self.metrics.count_drop(reason, direction)
        if self.on_drop is not None:
            self.on_drop(message, client, reason, direction, detail)
        if message is None or "on_dropped" not in self.observed:
            return
        if self.later:
            self.tell()
        client_id = client.client_id if client is not None else None
        listener = client.listener if client is not None else ""
        why = Dropped(reason, direction, client_id, detail)
        self.hooks.observers.notify("on_dropped", listener, client, message, why)

    def observe(self, hook: str, client: ClientInfo | None, *args: object) -> None:
        """Tell the observers of `hook` about `client`; free where nobody observes it."""
        if self.later:
            self.tell()
        if hook in self.observed:
            listener = client.listener if client is not None else ""
            self.hooks.observers.notify(hook, listener, client, *args)

    def tell(self) -> None:
        """Tell the observers what was left for later."""
        later, self.later = self.later, []
        at_depth(0, _call_all, later)  # it answers nothing, whatever it is told in the course of

    def observe_retained(self, topic: str, message: Message | None) -> None:
        """Tell the observers of retained messages; None: cleared."""
        if self.later:
            self.tell()
        if "on_retained" in self.observed:
            self.hooks.observers.notify("on_retained", "", topic, message)

    def denied(
        self, client: ClientInfo, action: Action, topic: str, code: ReasonCode, rule: str
    ) -> None:
        """Tell the observers of a refused action, and log it, at most once a second for one client; `rule` is what
        decided: a plugin's id, or ``default``."""
        self.observe("on_denied", client, action, topic, code, rule or "default")
        now = self.runtime.now()
        since, unsaid = self.denials.get(client.client_id, (-1.0, 0))
        if since >= 0 and now - since < 1.0:
            self.denials[client.client_id] = (since, unsaid + 1)
            return
        if len(self.denials) >= _DENIALS:
            self.denials.clear()
        self.denials[client.client_id] = (now, 0)
        self.runtime.log(
            "info",
            "authz.denied",
            client_id=client.client_id,
            action=action.value,
            topic=topic,
            code=f"0x{code:02X}",
            rule=rule or "default",
            unsaid=unsaid or None,
        )

    def guarded(self, call: Callable[[], None]) -> None:
        """Run `call`; what it raises is our fault, is logged, and stops nobody else [MQTT311-4.8.0-2]."""
        try:
            call()
        except Exception as error:
            self.runtime.log("error", "internal.error", error=repr(error), traceback=error)

    # --- routes ----------------------------------------------------------------------------------------------------

    def _compile(self, topic: str, entries: list[tuple[Subscriber, str, Subscription]]) -> Route:
        targets: dict[Session, Target] = {}
        groups: list[Group] = []
        for subscriber, _, subscription in entries:
            if isinstance(subscriber, Group):
                groups.append(subscriber)
                continue
            target = targets.get(subscriber)
            if target is None:
                targets[subscriber] = Target(subscriber, subscription)
            else:
                target.merge(subscription)
        self.work += (len(entries) >> 3) + (len(topic) >> 11)
        for session, target in targets.items():
            target.complete()
            target.plain = (
                session.kind != 0
                and not target.identifiers
                and not target.no_local
                and not self._transforms(session.client.listener, topic)
            )
        return Route(
            topic,
            list(targets.values()),
            groups,
            [journal for journal in self.journals if journal.wants(topic)],
            self.settings.broker.fan_out_slice,
        )

    def _transforms(self, listener: str, topic: str) -> bool:
        """Whether a plugin has a say in each delivery of `topic` to clients of `listener`."""
        chains = self.chains(listener)
        return bool(
            (chains.on_deliver and narrow(chains.on_deliver, topic))
            or (
                chains.authorize[Action.DELIVER] and narrow(chains.authorize[Action.DELIVER], topic)
            )
        )

    def chains(self, listener: str) -> Chains:
        """The compiled hook chains of a listener's clients."""
        return self.hooks.chains(listener)

    def reroute(self, session: Session) -> None:
        """Have every route compiled anew that leads to `session`: how it takes its messages changed."""
        for subscription in session.subscriptions.values():
            if subscription.share is None:
                self.router.invalidate(subscription.topic_filter)
