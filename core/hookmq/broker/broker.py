"""The broker as the shell sees it: start from what is stored, accept connections, reload, drain."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from hookmq.broker.attach import kind_of, measure
from hookmq.broker.channel import Channel
from hookmq.broker.connection import Connection
from hookmq.broker.core import Core
from hookmq.broker.expiries import Expiries, Kept
from hookmq.broker.groups import Group
from hookmq.broker.handle import Handle
from hookmq.broker.link import Link
from hookmq.broker.queue import restore
from hookmq.broker.retain import expire, hold
from hookmq.broker.retention import watch_expiry
from hookmq.broker.retry import watch_retries
from hookmq.broker.revoke import revoke
from hookmq.broker.sessions import (
    create,
    end,
    forsake,
    leave,
    publish_will,
    record,
    return_shared,
    subscribe,
    weigh,
)
from hookmq.broker.table import TABLE
from hookmq.errors import StoreError
from hookmq.hooks.manager import Hooks
from hookmq.metrics import Metrics
from hookmq.qos import Delivery, Outgoing
from hookmq.reason import ReasonCode
from hookmq.runtime import Runtime, Wire
from hookmq.session import Session
from hookmq.settings import Settings
from hookmq.store import (
    DropPublisher,
    Enqueue,
    Journal,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    Queued,
    QueueSummary,
    SessionRecord,
    Store,
    StoreFailed,
)
from hookmq.types import (
    ClientInfo,
    DisconnectReason,
    EndedBy,
    Message,
    Peer,
    Scope,
    SessionEvent,
    Subscription,
)

_FIRST = -(1 << 62)
"""Before every entry of a queue."""


class Broker:
    """One broker. All calls are made on the loop's thread and return at once; what takes longer tells a callback.

    `store` and `journals` are those that plugins provide where they are None; without such a plugin nothing outlives the
    process. Raises PluginError when a plugin that should provide one fails.

    `on_failure` is told once when the store or a journal failed: from then on nothing is acknowledged, and the shell
    should tell the clients (`drain`) and end the process with an error.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        hooks: Hooks | None = None,
        store: Store | None = None,
        journals: Sequence[Journal] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        hooks = hooks or Hooks()
        self.core = Core(
            settings,
            runtime,
            hooks,
            store,
            journals,
            metrics or Metrics(),
            self._handle,
        )
        core = self.core
        core.expiries = Expiries(core.runtime, core.deadlines, partial(expire, core))
        self.connections: dict[Channel, Link] = {}
        """Every connection that has not ended, in the order in which they came; values mean nothing. Not a set: its order
        would be by address, and no run like another."""
        self._drained: Callable[[], None] | None = None
        self._next_full = 0.0
        """When a connection over the limit is logged again."""
        self._unsaid_full = 0
        self._on_end: Callable[[Channel, DisconnectReason], None] = self._ended
        """One for all connections: each would have its own otherwise."""

    def _handle(self, core: Core) -> Callable[..., Handle]:
        return partial(Handle, core)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.core.settings

    @property
    def metrics(self) -> Metrics:
        """The counters."""
        return self.core.metrics

    @property
    def store(self) -> Store:
        """Where its state lives; to be closed by the owner after the drain."""
        return self.core.store

    @property
    def sessions(self) -> dict[str, Session]:
        """Every session, by client id."""
        return self.core.sessions

    @property
    def on_failure(self) -> Callable[[str], None] | None:
        """Told once when a commit failed."""
        return self.core.on_failure

    @on_failure.setter
    def on_failure(self, call: Callable[[str], None] | None) -> None:
        self.core.on_failure = call

    # --- connections -----------------------------------------------------------------------------------------------

    def accept(self, wire: Wire, peer: Peer, scope: Scope) -> Connection:
        """A new connection from `peer` by the listener of `scope`. Over the broker's limit it is closed at once."""
        core = self.core
        connection = Connection(core, wire, peer, scope, TABLE, self._on_end)
        full = len(self.connections) >= core.settings.broker.max_connections
        if core.draining or full:
            core.metrics.connections_refused += 1
            if full and not core.draining:
                self._tell_full(peer, scope)
            connection.end(DisconnectReason(ReasonCode.SERVER_BUSY, EndedBy.SERVER))
            return connection
        self.connections[connection] = connection
        return connection

    def _tell_full(self, peer: Peer, scope: Scope) -> None:
        """Log and tell a connection over `broker.max_connections`, once a second: a stranger makes as many as it likes.
        It has not sent CONNECT, so that nothing but its peer is known."""
        core = self.core
        now = core.runtime.now()
        if now < self._next_full:
            self._unsaid_full += 1
            return
        unsaid, self._unsaid_full = self._unsaid_full, 0
        self._next_full = now + 1.0
        core.runtime.log(
            "warning",
            "listener.refused",
            listener=scope.name,
            why="broker.max_connections",
            peer=str(peer),
            unsaid=unsaid or None,
        )
        client = ClientInfo("", 0, None, peer, scope, connected_at=core.runtime.time())
        core.observe("on_auth_failed", client, ReasonCode.SERVER_BUSY, "too many connections")

    def _ended(self, connection: Channel, reason: DisconnectReason) -> None:
        self.connections.pop(connection, None)
        core = self.core
        session = connection.session
        client = connection.client
        if session is not None and connection.carries(session) and client is not None:
            keeps_will = reason.by is EndedBy.CLIENT and (
                reason.code is ReasonCode.SUCCESS or connection.version < 5
            )  # [MQTT-3.14.4-3] [MQTT311-3.14.4-3]: only a normal DISCONNECT takes the will along
            will = session.will is not None and not keeps_will
            if core.runtime.logs("info"):
                core.runtime.log(
                    "info",
                    "client.disconnected",
                    client_id=client.client_id,
                    code=f"0x{reason.code:02X}",
                    by=reason.by.value,
                    error=reason.error or None,
                )
            if "on_disconnect" in core.observed:
                told = DisconnectReason(reason.code, reason.by, will, reason.error)
                core.observe("on_disconnect", client, told)
            leave(core, session, not keeps_will)
        if self._drained is not None and not self.connections:
            self._finish_drain()

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Take up what the store keeps; then `done` is told None, or the StoreError that forbids to start."""
        core = self.core
        try:
            last = core.store.last_commit()
            for journal in core.journals:
                journal.recover(last)
            orphans = self._load()
        except StoreError as error:
            done(error)
            return
        groups = deque((*core.groups.values(), *orphans))
        self._load_groups(groups, _FIRST, partial(self._loaded, done, orphans))

    def _loaded(
        self,
        done: Callable[[BaseException | None], None],
        orphans: list[Group],
        failed: StoreFailed | None,
    ) -> None:
        if failed is not None:
            done(StoreError(failed.reason))
            return
        core = self.core
        for group in orphans:
            forsake(core, group)
        for session in core.sessions.values():
            return_shared(core, session)  # nobody is connected any more
        self._set_deadlines()
        watch_retries(core)
        watch_expiry(core)
        core.schedule()
        done(None)

    def _load(self) -> list[Group]:
        """Take up what is stored, less what waits for groups. Returns groups whose last members ended with the process,
        and left behind what waits for them."""
        core = self.core
        shared: dict[int, Outgoing] = {}
        messages: dict[int, Message] = {}
        queues: dict[str, QueueSummary] = {}
        for item in core.store.load():
            # What there may be a million of comes first.
            if isinstance(item, PutRetained):
                publisher = core.publishers.get(item.publisher) if item.publisher else None
                if item.publisher and publisher is None:
                    raise StoreError(f"the publisher of retained {item.message.topic!r} is missing")
                hold(core, Kept(item.message, publisher))
            elif isinstance(item, PutPublisher):
                core.publishers.load(item.id, item.client)
            elif isinstance(item, PutSubscription):
                session = core.sessions[item.client_id]
                subscribe(core, session, item.subscription)
            elif isinstance(item, PutSession):
                self._load_session(item.session)
            elif isinstance(item, PutReceived):
                session = core.sessions[item.client_id]
                if session.received is None:
                    session.received = set()
                session.received.add(item.packet_id)
            elif isinstance(item, PutMessage):
                messages[item.id] = item.message
            elif isinstance(item, Enqueue):
                found = core.sessions.get(item.owner[2:])
                if found is not None:
                    delivery = restore(core, found, item, messages[item.message_id], shared)
                    found.inflight[item.packet_id] = delivery
                    found.last_seq = max(found.last_seq, item.seq)
                    found.loaded_seq = max(found.loaded_seq, item.seq)
                    found.last_packet_id = item.packet_id
            elif isinstance(item, QueueSummary):
                queues[item.owner] = item
        for session in core.sessions.values():
            summary = queues.get(session.owner)
            if summary is not None:
                session.stored = session.queued = summary.entries
                session.queued_bytes = summary.size
                core.queued_bytes += summary.size
                session.last_seq = max(session.last_seq, summary.last_seq)
        for unused in core.publishers.unused():
            core.committer.add(DropPublisher(unused.id))
        owners = {group.owner for group in core.groups.values()}
        return [
            Group("", "", owner, core.settings.broker.shared_strategy)
            for owner in queues
            if owner.startswith("g/") and owner not in owners
        ]

    def _load_session(self, kept: SessionRecord) -> None:
        core = self.core
        session = create(core, kept.client.client())
        core.metrics.sessions_created -= 1
        session.expiry = kept.expiry
        session.durable = session.recorded = True
        session.ended_at = kept.ended_at
        session.will = kept.will
        session.will_at = kept.will_at
        weigh(core, session)
        session.revoked = set(kept.revoked) or None
        session.queue_messages = kept.limits.get(
            "queue_messages", core.settings.session.queue_messages
        )
        session.max_subscriptions = kept.limits.get(
            "max_subscriptions", core.settings.session.max_subscriptions
        )
        if session.ended_at is None:
            # Who was connected when we went down lost the connection then; nobody knows when that was but now. It is
            # recorded, or another crash would prolong the session and put off its will.
            now = session.ended_at = core.runtime.time()
            if session.will is not None:
                most = core.settings.session.max_will_delay
                session.will_at = now + min(session.will.delay, most, session.expiry)
            core.committer.add(record(session))
        elif session.will is not None and session.will_at is None:
            session.will_at = core.runtime.time()  # it was being published

    def _load_groups(
        self, left: deque[Group], after: int, then: Callable[[StoreFailed | None], None]
    ) -> None:
        """Take up what waits for the groups that are `left`, page by page, at once or as the store answers."""
        while left:
            page = self._read_page(left, after, then)
            if page is None:
                return
            if isinstance(page, StoreFailed):
                then(page)
                return
            after = self._take_page(left, page, after)
        then(None)

    def _read_page(
        self, left: deque[Group], after: int, then: Callable[[StoreFailed | None], None]
    ) -> list[Queued] | StoreFailed | None:
        """The next page of the first group; None when it comes later, which then goes on by itself."""
        pages: list[list[Queued] | StoreFailed] = []
        waiting = False

        def loaded(page: list[Queued] | StoreFailed) -> None:
            if not waiting:
                pages.append(page)
            elif isinstance(page, StoreFailed):
                then(page)
            else:
                self._load_groups(left, self._take_page(left, page, after), then)

        self.core.store.read(left[0].owner, after, 1000, 1 << 24, loaded)
        waiting = True
        return pages[0] if pages else None

    def _take_page(self, left: deque[Group], page: list[Queued], after: int) -> int:
        """Add a page to the first group, which is done with when the page is empty; after which entry to go on."""
        core = self.core
        if not page:
            left.popleft()
            return _FIRST
        group = left[0]
        for entry, message in page:
            outgoing = Outgoing(message, entry.message_id)
            delivery = Delivery(
                outgoing, entry.qos, False, (), Subscription("", ""), group, entry.seq
            )
            delivery.weight = entry.size
            group.queue.append(delivery)
            group.waits(entry.size)
            core.queued_bytes += entry.size
            group.first_seq = min(group.first_seq, entry.seq)
            group.last_seq = max(group.last_seq, entry.seq)
            after = entry.seq
        return after

    def _set_deadlines(self) -> None:
        core = self.core
        now = core.runtime.time()
        for session in list(core.sessions.values()):
            ended = session.ended_at
            if ended is None:
                continue
            if session.will_at is not None:
                delay = max(0.0, session.will_at - now)
                session.will_due = core.deadlines.after(delay, partial(publish_will, core, session))
            if session.expiry != inf:
                left = max(0.0, ended + session.expiry - now)
                session.expiry_due = core.deadlines.after(
                    left, partial(end, core, session, SessionEvent.EXPIRED)
                )

    def reload(self, settings: Settings, hooks: Hooks) -> None:
        """Go on with other settings and hooks. Connected clients stay, and what CONNACK promised them holds. Every
        decision that was remembered is made anew, and subscriptions are asked about again."""
        core = self.core
        hooks.bind(core.runtime, partial(Handle, core))
        core.use(settings, hooks)
        for connection in self.connections.values():
            connection.use_chains(core.chains(connection.scope.name))
            session = connection.session
            if session is not None and session.connection is connection:
                if not measure(connection):
                    # Nobody goes on without limits because they could not be found.
                    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
                    core.runtime.call_soon(partial(connection.disconnect, code, "no limits"))
                session.kind = kind_of(connection)
        revoke(core, None, None)

    def drain(self, reference: str, done: Callable[[], None]) -> None:
        """Disconnect every client, naming `reference` as another server to use where it is given, commit what is left,
        then tell `done`. Nobody is accepted any more."""
        core = self.core
        core.draining = True
        self._drained = done
        code = ReasonCode.USE_ANOTHER_SERVER if reference else ReasonCode.SERVER_SHUTTING_DOWN
        for connection in list(self.connections):
            connection.disconnect(code, "", reference)
        if not self.connections:
            self._finish_drain()

    def _finish_drain(self) -> None:
        done, self._drained = self._drained, None
        if done is None:
            return
        core = self.core
        if core.failed is not None:
            done()
            return
        core.committer.then(done)
        core.schedule()
