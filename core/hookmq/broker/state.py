"""The state that all parts of the broker share: sessions, routes, retained messages, the commit point.

The modules of this package take a `BrokerState` and change it; none of them has state of its own. `WriteScheduler` ends
each turn.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

from hookmq.broker.fan_out_job import FanOutJob
from hookmq.broker.parked_publishes import Parking
from hookmq.broker.plugin_promises import PluginPromises
from hookmq.broker.plugin_state import PluginStates
from hookmq.broker.plugin_timers import PluginTimers
from hookmq.broker.plugin_turns import PluginTurns
from hookmq.broker.published_events import arguments
from hookmq.broker.publishers import Publishers
from hookmq.broker.queue_limits import QueueLimits
from hookmq.broker.retained_expiry import Expiries, Kept
from hookmq.broker.timers import TimerQueue
from hookmq.broker.write_scheduler import WriteScheduler
from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.chain import Calls, Chains, narrow
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.recursion import at_depth
from hookmq.hooks.specs import OBSERVERS
from hookmq.hooks.traces import Trace, TraceRequest
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.cursors import Cursors
from hookmq.model.drain import Drainer
from hookmq.model.events import Action, Direction, Dropped, DropReason
from hookmq.model.log_events import EventLog
from hookmq.model.message import Message
from hookmq.model.metrics import Metrics
from hookmq.model.reload_report import ConfigCheck, Reloader
from hookmq.model.runtime import Runtime
from hookmq.model.settings import Settings
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.routing.retained_index import RetainedIndex
from hookmq.routing.retained_search import RetainedSearches
from hookmq.routing.route import Route, RouteCompiler, Subscriber
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.routing.subscription_tree import SubscriptionTree
from hookmq.session.inflight import Delivery, Outgoing
from hookmq.session.serial_index import SerialIndex
from hookmq.session.session import Session
from hookmq.storage.cluster import Cluster, RelayTarget
from hookmq.storage.commit_pause import CommitPause
from hookmq.storage.group_commit import GroupCommit, entry_of
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Journal, Store
from hookmq.storage.records import Enqueue, PutMessage, PutState, Record

_DENIALS: Final = 1000
"""How many clients' denials are counted between two log lines."""


def _observed(hooks: Hooks) -> frozenset[str]:
    return frozenset(
        name
        for name in OBSERVERS
        if any(
            not one.instance.disabled and name not in one.instance.kept.paused
            for one in hooks.registry.get(name, ())
        )
    )


def _watched(
    call: Callable[[str, ClientInfo | None, tuple[Any, ...]], None],
    notify: Callable[..., None],
    hook: str,
    listener: str,
    client: ClientInfo | None,
    *args: object,
) -> None:
    call(hook, client, args)
    notify(hook, listener, client, *args)


def _no_listener(name: str) -> RelayTarget | None:
    return None


class UndecidedWill(Protocol):
    """A will waiting for a plugin's decision."""

    def ask(self, last: bool = False) -> None:
        """Ask plugins again. Drop the will if this is the `last` attempt and no plugin can decide."""

    def stop_waiting(self) -> None:
        """Forget the will."""


class BrokerState:
    """The shared state of one broker. All modules of this package read and change it."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        hooks: Hooks,
        store: Store | None,
        journals: Sequence[Journal] | None,
        metrics: Metrics,
        handles: Callable[["BrokerState"], Callable[[PluginInstance], BrokerHandle]],
    ) -> None:
        # Long on purpose: it documents every field.
        self.settings = settings
        self.runtime = runtime
        self.hooks = hooks
        hooks.bind(runtime, handles(self))
        self.observed = _observed(hooks)
        """Observer hooks that at least one plugin implements; every other hook costs only one check."""
        self.metrics = metrics
        self.limits = PacketLimits(
            settings.broker.max_packet_size,
            settings.broker.max_user_properties,
            settings.broker.max_filters,
            settings.broker.text == "strict",
        )
        self.queue_limits = QueueLimits(settings)
        self.largest_packet = settings.broker.max_packet_size
        """The size in bytes of the largest packet that any connection may send. A reload lowers the limit only for new
        connections."""
        self.deadlines = TimerQueue(runtime, self.guarded)
        self.sessions: dict[str, Session] = {}
        self.session_index: SerialIndex[Session] = SerialIndex()
        """The same sessions, for plugins that list them page by page."""
        self.ending: dict[str, int] = {}
        """How many of a client's sessions have ended but are not yet recorded as ended."""
        self.undecided_wills: dict[str, tuple[UndecidedWill, ...]] = {}
        """Wills on which no plugin could decide yet, by client id."""
        self.undecided_will_bytes = 0
        self.ended_meanwhile: set[str] | None = None
        """Clients whose sessions ended during the current search for expired messages; None if no search is running."""
        self.groups: dict[tuple[str, str], SharedSubscription] = {}
        self.group_index: SerialIndex[SharedSubscription] = SerialIndex()
        self.retained: RetainedIndex[Kept] = RetainedIndex()
        self.retained_bytes = 0
        self.retained_told = 0.0
        """The earliest time to log again that there is no room for retained messages."""
        self.searches: dict[str, RetainedSearches[Kept]] = {}
        """The searches for retained messages that plugins have begun and may continue, by plugin id."""
        self.cursors = Cursors(partial(runtime.token, 8))
        self.cluster: Cluster | None = hooks.provide_cluster(settings)
        """The other nodes, or None if this broker is not part of a cluster."""
        self.listeners: Callable[[], tuple[ListenerSnapshot, ...]] = tuple
        """Returns the server's listeners. The server sets it."""
        self.relay_target: Callable[[str], RelayTarget | None] = _no_listener
        """Returns the listener with a name, for connections that other nodes relay. The server sets it."""
        self.reloader: Reloader | None = None
        """Starts a reload for a plugin; None if there is nothing to reload. The server sets it."""
        self.check_config: Callable[[str], ConfigCheck] | None = None
        """Checks a configuration document, in a thread; None if there is no configuration. The server sets it."""
        self.configuration: Callable[[], str] = str
        """Returns the configuration in force as YAML without secrets; empty if there is none. The server sets it."""
        self.drainer: Drainer | None = None
        """Drains the server for a plugin; None if there is no server. The server sets it."""
        self.event_log: EventLog | None = None
        """The process's log; None if it cannot be followed, as in tests. The server sets it."""
        self.counters: Callable[[], dict[str, float]]  # set by `Broker`, which has some of them
        self.publishers = Publishers()
        self.plugin_states = PluginStates(self._record_plugin_state)
        self.promises = PluginPromises(runtime)
        """The promises that plugins await."""
        self.expiries: Expiries  # set by `Broker`, which can clear a message
        self.open_client: Callable[[PluginInstance, Peer, Scope], Any]
        """Opens a connection for a plugin client; set by `Broker`."""
        self.start_trace: Callable[[PluginInstance, TraceRequest], Trace]
        """Starts a trace for a plugin; set by `Broker`."""
        self.on_accept: Callable[[Any], None] | None = None
        """Called with each new connection while traces run."""
        self.wrap_chains: Callable[[Any, Chains], Chains] | None = None
        """Returns the chains of a traced connection."""
        self.notify: Callable[..., None] = hooks.observers.notify
        """Notifies observers, and traces while they run; see `watch`."""
        self._watch_again: Callable[[], None] | None = None
        if store is None:
            store = hooks.provide_store(settings) or MemoryStore(runtime.token(8))
        self.store = store
        self.recording = type(store) is not MemoryStore
        """Whether queues and packet ids are recorded in the store. They are not recorded in a `MemoryStore`, which
        would only hold a second copy."""
        self.journals = hooks.provide_journals(settings) if journals is None else tuple(journals)
        self.writes = WriteScheduler(runtime, metrics, settings.broker.max_write_buffer)
        self.committer = GroupCommit(
            store,
            self.journals,
            self._commit_failed,
            self.guarded,
            lambda: self.commit_pause.finished(),
            self._put_sent,
            runtime.now if self.recording else None,
            metrics.commit_seconds,
        )
        if self.cluster is not None:
            self.committer.add_journal(self.cluster)
        self.commit_pause = CommitPause(
            runtime, self.committer, self._written_after_pause, self.cluster is not None
        )
        self.writes.committer = self.committer
        self.writes.commit = self.commit_pause.commit
        self.writes.tell = self.tell
        self.plugin_turns = PluginTurns(runtime)
        self.parking = Parking(self.deadlines, self.guarded, self.writes.schedule)
        self.routes = RouteCompiler(self, self.journals, 0, None)
        self._set_up_routes()
        self.router: SubscriptionTree[Subscriber, Subscription, Route] = SubscriptionTree(
            self.routes.compile, max_levels=settings.broker.max_topic_levels
        )
        self.plugin_timers = PluginTimers(self, self.writes.schedule)
        hooks.on_ready_ended = self.plugin_timers.wake
        self.next_message_id = store.next_message_id()
        self.session_bytes = 0
        """Bytes of client data that sessions hold: client ids, user names, wills and filters."""
        self.queued_bytes = 0
        self.loaded_bytes = 0
        """Bytes of queued messages in memory; a message in several queues counts for each."""
        self.work = 0
        """Steps of work done so far, such as serving a receiver, subscribing to a filter or encoding a few KiB. They
        limit the work that one client causes in a turn."""
        self.fan_outs: dict[str, deque[FanOutJob]] = {}
        """Large fan-outs in progress, by topic."""
        self.fan_order: deque[str] = deque()
        """The topics of `fan_outs`, in the order in which they will be served."""
        self.collecting: FanOutJob | None = None
        """The fan-out whose queue entries the commit waits for, or None."""
        self.after_collecting: deque[Callable[[], None]] = deque()
        """Messages for many receivers, waiting until `collecting` is done."""
        self.draining = False
        self.arrived = 0.0
        """The result of `arrival`, or 0 if no message of the current read has needed it yet. It is reset after each
        read, so the clock is read once for all messages of a read."""
        self.shortcuts = True
        """If False, every packet goes through its handler. Tests use this setting to compare both paths."""
        self.remembered = 0
        """The number of remembered decisions and cached publishes of all connections together."""
        self.denials: dict[str, tuple[float, int]] = {}
        self.failed: str | None = None
        self.on_drop: (
            Callable[[Message | None, ClientInfo | None, DropReason, Direction, str], None] | None
        )
        self.on_drop = None
        """Called immediately for every drop, even if there is no message. The simulator needs this; observers are
        notified later.
        """
        self.on_failure: Callable[[str], None] | None = None
        """Called once when a commit has failed: the server disconnects clients and ends the process."""

    def use(self, settings: Settings, hooks: Hooks) -> None:
        """Switch to other settings and hooks. All routes are compiled again and all remembered decisions are
        discarded."""
        if self.writes.later:
            self.tell()
        hooks.wrap(self.hooks.wrapping)
        self.settings = settings
        self.hooks = hooks
        self.observed = _observed(hooks)
        self.notify = hooks.observers.notify
        if self._watch_again is not None:
            self._watch_again()
        self.limits = PacketLimits(
            settings.broker.max_packet_size,
            settings.broker.max_user_properties,
            settings.broker.max_filters,
            settings.broker.text == "strict",
        )
        self.queue_limits = QueueLimits(settings)
        self.largest_packet = max(self.largest_packet, settings.broker.max_packet_size)
        self.writes.room = settings.broker.max_write_buffer
        self._set_up_routes()
        self.router.clear_cache()
        hooks.on_ready_ended = self.plugin_timers.wake
        self.plugin_timers.wake()

    def switch_observer(self, plugin_id: str, hook: str, wanted: bool) -> None:
        """Switch a plugin's observer on or off; see `BrokerHandle.observe`."""
        if self.hooks.switch_observer(plugin_id, hook, wanted):
            self.observed = _observed(self.hooks)
            if self._watch_again is not None:
                self._watch_again()

    def watch(
        self,
        call: Callable[[str, ClientInfo | None, tuple[Any, ...]], None] | None,
        names: frozenset[str],
        again: Callable[[], None],
    ) -> None:
        """Call `call` with the events of the observer hooks `names`, before their observers are called. Pass None to
        stop. `again` is called after a reload and must call this method again.
        """
        notify = self.hooks.observers.notify
        self.observed = _observed(self.hooks)
        self.notify = notify
        self._watch_again = None
        if call is None:
            return
        self.observed |= names
        self.notify = partial(_watched, call, notify)
        self._watch_again = again

    def arrival(self) -> float:
        """Return when the messages of the current read arrived, in epoch seconds. Call this only during a read."""
        now = self.arrived
        if now == 0.0:
            now = self.arrived = self.runtime.time()
        return now

    # --- the store -------------------------------------------------------------------------------------------------

    def keep(self, outgoing: Outgoing) -> int:
        """Return the message's id in the store. The first call adds the message to the batch; the caller must add the
        queue entry that refers to it."""
        if outgoing.id == 0:
            outgoing.id = self.next_message_id
            self.next_message_id += 1
            outgoing.record_index = self.committer.next_index()
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

    def _record_plugin_state(self, record: Record) -> None:
        if self.recording:
            value = record.value if isinstance(record, PutState) else b""
            self.committer.add(record, len(value))
        self.writes.schedule()

    def _commit_failed(self, reason: str) -> None:
        # Nothing that waits is ever acknowledged: calling fsync again may report success without writing.
        self.failed = reason
        self.runtime.log("error", "store.failed", reason=reason)
        self.promises.fail(f"the store failed: {reason}")
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
        """Count a dropped message and notify observers. `client` is the publisher (in) or the receiver (out)."""
        self.metrics.count_drop(reason, direction)
        if self.on_drop is not None:
            self.on_drop(message, client, reason, direction, detail)
        if message is None or "on_dropped" not in self.observed:
            return
        if self.writes.later:
            self.tell()
        client_id = client.client_id if client is not None else None
        listener = client.listener if client is not None else ""
        why = Dropped(reason, direction, client_id, detail)
        self.hooks.observers.notify("on_dropped", listener, client, message, why)

    def observe(self, hook: str, client: ClientInfo | None, *args: object) -> None:
        """Notify the observers of `hook` about `client`. This costs nothing if there are no observers."""
        if self.writes.later:
            self.tell()
        if hook in self.observed:
            listener = client.listener if client is not None else ""
            self.notify(hook, listener, client, *args)

    def report(
        self, event: str, listener: str, client: ClientInfo | None, fields: dict[str, object]
    ) -> None:
        """Report one of the broker's own events to the observers of `on_event`, with an empty `plugin`. `listener`
        is added to `fields`.
        """
        if self.writes.later:
            self.tell()
        if "on_event" in self.observed:
            fields["listener"] = listener
            view = MappingProxyType(fields)
            self.hooks.observers.notify("on_event", listener, client, event, view, "")

    def _written_after_pause(self) -> None:
        self.writes.flush()
        if self.writes.later:
            self.runtime.call_soon(self.tell)

    def tell(self) -> None:
        """Notify observers of the events that were deferred."""
        later, self.writes.later = self.writes.later, []
        # No hook caused this call, so the depth starts at 0.
        at_depth(0, self.hooks.observers.notify_published, arguments(self.runtime, later))

    def observe_retained(self, topic: str, message: Message | None) -> None:
        """Notify the observers of retained messages. `message` is None if the topic was cleared."""
        if self.writes.later:
            self.tell()
        if "on_retained" in self.observed:
            self.hooks.observers.notify("on_retained", "", topic, message)

    def denied(
        self, client: ClientInfo, action: Action, topic: str, code: ReasonCode, rule: str
    ) -> None:
        """Notify observers of a refused action, and log it at most once a second per client. `rule` is the id of the
        plugin that decided, or ``default``."""
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
        """Run `call` and log any exception: an internal error must not stop other work [MQTT311-4.8.0-2]."""
        try:
            call()
        except Exception as error:
            self.runtime.log("error", "internal.error", error=repr(error), traceback=error)

    # --- routes ----------------------------------------------------------------------------------------------------

    def set_journals(self, journals: tuple[Journal, ...]) -> None:
        """Route messages to `journals` from now on. The committer keeps its own list."""
        self.journals = self.routes.journals = journals
        self.router.clear_cache()

    def _set_up_routes(self) -> None:
        self.routes.slice_size = self.settings.broker.fan_out_batch
        self.routes.decides = self._decides if self.hooks.delivers else None

    def _decides(self, session: Session, topic: str) -> Calls | None:
        """Return the calls to `on_deliver` that decide on deliveries of `topic` to `session`, or None if `authorize`
        decides too.
        """
        connection = session.connection
        chains = self.chains(session.client.listener) if connection is None else connection.chains
        deciding = chains.authorize[Action.DELIVER]
        if deciding and narrow(deciding, topic):
            return None
        return narrow(chains.on_deliver, topic) if chains.on_deliver else ()

    def chains(self, listener: str) -> Chains:
        """Return the hook chains for a listener's clients."""
        return self.hooks.chains(listener)

    def reroute(self, session: Session) -> None:
        """Recompile every route to `session`, because the way it receives messages has changed."""
        for subscription in session.subscriptions.values():
            if subscription.share is None:
                self.router.invalidate(subscription.topic_filter)
