"""The `broker` argument of a hook. `hookmq.broker.plugin_api` implements it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from hookmq.hooks.clients import ClientHandle, ClientRequest
from hookmq.hooks.direct_deliveries import DirectDeliveries
from hookmq.hooks.plugin_state import PluginState
from hookmq.hooks.traces import Trace, TraceRequest
from hookmq.hooks.verdicts import Allow, Deny, Drop, Handled, PluginDecision
from hookmq.model.client import ClientInfo
from hookmq.model.drain import DrainRequest, DrainStatus
from hookmq.model.events import Action, DeliveryEnd
from hookmq.model.log_events import LogFollower, LogLevel, LogLevels
from hookmq.model.message import Message
from hookmq.model.metrics import Metrics
from hookmq.model.reload_report import ConfigCheck, ReloadReport
from hookmq.model.runtime import Runtime
from hookmq.model.snapshots import (
    InflightMessage,
    ListenerSnapshot,
    Page,
    PluginSnapshot,
    QueuedMessage,
    SessionSnapshot,
    SharedGroup,
    SubscriptionSnapshot,
)
from hookmq.model.subscription import Subscription
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.protocols import Journal


class BrokerHandle(Protocol):
    """The `broker` argument of a hook: the operations a plugin can request. Each plugin has its own handle.

    Hooks that run in a thread may also use it: observers without ``async``, and plugins with ``blocking = True``. In a
    thread, calls to `publish`, `emit`, `invalidate_authz` and `invalidate_routes` are passed to the event loop in order.
    `log`, `now`, `time` and `metrics` work from any thread. All other members need the broker's state and raise
    PluginError in a thread: write a hook that needs them as ``async def``.
    """

    @property
    def metrics(self) -> Metrics:
        """The broker's counters, which are read-only for plugins."""

    @property
    def runtime(self) -> Runtime:
        """Timers, coroutines and threads for a plugin's own work. Raises PluginError in a thread.

        Get it in `on_startup`. Your own threads can then use its `call_threadsafe` to run code on the event loop.
        """

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
        *,
        as_client: ClientInfo | None = None,
        volatile: bool = False,
        transformed: bool = False,
    ) -> None:
        """Publish a message with the origin ``plugin:ID``. Returns at once.

        The message passes through every hook except `authorize` and this plugin's own `on_publish`. A refusal is
        counted, logged and reported to `on_dropped`. Raises PluginError for an invalid argument, or for a message whose
        PUBLISH would exceed ``broker.max_packet_size``.

        With `as_client`, the message is published on behalf of that client, which may be offline. `authorize` is then
        called, all hooks see this client, and `Message.sender` is its client id. `topic` includes the client's mount
        point. The client's rate limit does not apply.

        With `retain` and `volatile`, the message is retained without a record in the store. After a restart, neither
        this message nor the message that it replaced exists. Use this for values that are published repeatedly, such as
        statistics. Without `retain`, `volatile` has no effect.

        With `transformed`, neither `authorize` nor `on_publish` is called. Use it to publish a message that `transform`
        returned, because the plugins have already seen it.
        """

    def publish_and_wait(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
        *,
        as_client: ClientInfo | None = None,
        volatile: bool = False,
        transformed: bool = False,
    ) -> Awaitable[int]:
        """Publish a message, wait for the commit, and return the number of matching subscriptions and journals.

        Takes the same arguments as `publish`. Awaiting raises PublishRefused if the message is refused, and PluginError
        if an internal error occurs, the store fails, or the broker ends first. Every other awaitable in this class also
        raises PluginError in these cases. Raises PluginError if called in a thread.
        """

    def transform(
        self, client: ClientInfo | None, message: Message, action: Action = Action.PUBLISH
    ) -> Awaitable[Message | Deny | Drop | Handled]:
        """Ask the other plugins what would happen to `message` if `client` published it. Nothing is published.

        Use this if your plugin accepts a message now and publishes it later. The result is the message as `on_publish`
        changed it: publish it with ``transformed=True``, so that no plugin sees it twice. Any other result is the
        reason why the message would not be published. The plugin can pass this reason on to the client.

        `authorize` is called for the topic of the message, and again if a plugin changes the topic. For the action
        WILL, `on_will` is called as well. Without a client, there is no authorization. Plugins may count or store what
        they see, so call this once for each message. Refusals are not reported to `on_denied` or `on_dropped`. Raises
        PluginError for other actions, for an invalid topic, or if called in a thread.
        """

    def connect(self, request: ClientRequest) -> Awaitable[ClientHandle]:
        """Connect a plugin client: a client of the broker without a socket, for a device that does not speak MQTT.

        All plugins, including this one, treat it like any other client: `on_connect`, `authorize` and the other hooks
        decide on it. Awaiting raises ConnectRefused with the reason code if the client is not accepted. Raises
        PluginError for an invalid request, if the plugin has been disabled or shut down, or if called in a thread.
        """

    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None = None
    ) -> Awaitable[Allow | Deny]:
        """Ask all plugins, including this one, whether `client` may perform `action` on `topic`.

        `publish` itself calls `authorize` only with `as_client`. If all plugins abstain, ``authz.default`` decides.

        `action` is PUBLISH, SUBSCRIBE or WILL. For SUBSCRIBE, `topic` is a filter and may start with ``$share/``.
        Plugins see `message` with its topic set to `topic`. If you pass None, they see an empty QoS 0 message. The
        client may be offline.

        The result is a Deny if the QoS exceeds `Allow.max_qos` or the topic is below ``$SYS/``. If a plugin fails, it
        is a Deny with ``decided=False``. The result is neither cached nor reported to `on_denied`. Raises PluginError
        for other actions, for an invalid topic, or if called in a thread.
        """

    def explain(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None = None,
        subscription: Subscription | None = None,
    ) -> Awaitable[tuple[PluginDecision, ...]]:
        """Ask each plugin separately whether `client` may perform `action` on `topic`. For tools that explain decisions.

        The result has one entry for each plugin that decides on this action and this client's listener, in
        configuration order. `authorize` combines these verdicts: the first Deny is final, and otherwise at least one
        Allow is needed. A plugin that fails denies with ``decided=False``. If all abstain, there is one more entry with
        the verdict of ``authz.default``.

        Takes the same arguments as `authorize`. The action may also be DELIVER: every plugin that decides on deliveries
        is then asked, with `subscription` or, if it is None, with a QoS 0 subscription to `topic`. A delivery that no
        plugin denies is allowed. Raises PluginError in the same cases as `authorize`.
        """

    def explain_connect(self, request: ClientRequest) -> Awaitable[tuple[PluginDecision, ...]]:
        """Ask each plugin separately whether it would accept a client with these credentials. No client is connected.

        The result has one entry for each plugin with `on_connect` that serves ``request.listener``, in configuration
        order. The first Deny is final, and otherwise at least one Accept is needed. If all abstain, there is one more
        entry with the verdict of ``auth.default``. `on_auth`, the broker's limits and session ownership are not
        considered, and refusals are not reported to `on_auth_failed`. ``request.accept`` is ignored. Raises PluginError
        in the same cases as `connect`.
        """

    def emit(self, event: str, client: ClientInfo | None = None, /, **fields: object) -> None:
        """Report one of this plugin's events to `on_event` observers. The call returns at once, and is cheap if there
        are no observers.

        `event` is a dotted name that starts with the plugin's entry point, such as ``ratelimit.banned``. `fields` are
        JSON values without payloads or secrets. Raises PluginError for a name without a dot, or one that starts with
        ``broker.``: these are the broker's own events.
        """

    def invalidate_authz(self, client_id: str | None = None, filter: str | None = None) -> None:
        """Discard cached authorization decisions for one client or all, and authorize existing subscriptions again.

        If `filter` is given, only overlapping subscriptions are checked. Also rereads every plugin's
        `Plugin.authorize_actions`.
        """

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants, and drop cached routes. See
        `hookmq.storage.protocols.Journal.wants`."""

    def observe(self, hook: str, wanted: bool) -> None:
        """Switch this plugin's implementation of an observer hook on or off. While the hook is off, it is not called
        and costs nothing.

        A plugin that observes only occasionally should switch its hook off in `on_startup`. Events already waiting
        still reach the plugin. Raises PluginError in a thread or for a hook that the plugin does not implement. Also
        raises it for `on_published` and `on_delivered`, because the fast path remembers whether they are observed.
        """

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """Disconnect a client. Return False if it is offline. Raises PluginError in a thread.

        The call is logged and reported to `on_event` as ``broker.disconnected`` with this plugin's id. Every other call
        that changes the broker is reported in the same way, under an event name of its own.
        """

    def end_session(self, client_id: str, reason: str = "") -> bool:
        """End a client's session at once, regardless of its expiry. Return False if the client has no session.

        The session ends in a later turn, so nothing changes while the calling hook runs. An online client is
        disconnected with the code ADMINISTRATIVE_ACTION and `reason`. The will is published, and the session's
        subscriptions and messages are dropped. The call is reported as ``broker.session_ended``. Raises PluginError in
        a thread.
        """

    def subscribe(
        self,
        client_id: str,
        filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
        authorize: bool = False,
    ) -> Awaitable[ReasonCode]:
        """Subscribe a client, online or offline. The result is the granted QoS, or a code of 0x80 or above.

        Write `filter` as the client would send it. The broker adds the mount point of the client's listener, and the
        client can unsubscribe with `filter`. The subscription passes through the same checks, limits and hooks as a
        SUBSCRIBE, except the client's rate limit and this plugin's own `on_subscribe`. `authorize` is called only if
        you pass ``authorize=True``. Retained messages are sent as after a SUBSCRIBE. An offline client gets them when
        it reconnects, unless the broker restarts first.

        The result arrives after the commit. You need not await it. The call is reported as ``broker.subscribed`` or
        ``broker.subscribe_refused``. Raises PluginError for an invalid argument or in a thread. Awaiting raises
        PluginError if the client has no session.
        """

    def unsubscribe(self, client_id: str, filter: str) -> Awaitable[bool]:
        """Remove a client's subscription, online or offline. `filter` is compared character by character.

        The result arrives after the commit, and is False if there is no such subscription. Messages that are already
        queued are still delivered. The call is reported as ``broker.unsubscribed``. Raises PluginError in a thread.
        """

    def deliveries(
        self, ended: Callable[[list[tuple[object, DeliveryEnd]]], None]
    ) -> DirectDeliveries:
        """Return an object that sends messages to single online clients, without routing them.

        Use this if the plugin itself chooses each message's recipient, as a queue does. When deliveries end, `ended` is
        called in the next turn, on the event loop, with a list of (token, end). Raises PluginError in a thread.
        """

    def purge_queue(self, client_id: str) -> Awaitable[int]:
        """Drop every message waiting for a client, in memory and in the store. The result is the number of dropped
        messages.

        Messages in flight are not affected. Messages that arrive during the purge are kept. The work is done in slices,
        and nothing is sent from this queue until it ends. Each message is dropped with the reason ``plugin`` and this
        plugin's id. The result arrives after the commit. The call is reported as ``broker.queue_purged``. Raises
        PluginError in a thread.
        """

    def clear_retained(self, filter: str) -> Awaitable[int]:
        """Clear every retained message that `filter` matches. The result is the number of cleared messages.

        Nothing is sent to subscribers; `on_retained` is called for each topic. The work is done in slices. As in
        subscriptions, ``#`` does not match topics that start with ``$``. The result arrives after the commit. The call is
        reported as ``broker.retained_cleared``. Raises PluginError for an invalid filter or in a thread.
        """

    def client(self, client_id: str) -> ClientInfo | None:
        """Return an online client, or None if it is offline. Raises PluginError in a thread."""

    def session(self, client_id: str) -> SessionSnapshot | None:
        """Return the session of a client, online or offline, or None. Raises PluginError in a thread."""

    def sessions(
        self,
        cursor: str = "",
        limit: int = 100,
        *,
        client_id: str = "",
        username: str = "",
        listener: str = "",
        connected: bool | None = None,
    ) -> Page[SessionSnapshot]:
        """Return a page of the sessions, oldest first.

        To get the next page, pass ``page.cursor`` with the same other arguments. The cursor is empty after the last
        page. A session that exists from the first page to the last is returned exactly once. A session that begins or
        ends in the meantime may be missing.

        `client_id` and `username` are prefixes, `listener` is a name, and `connected` selects online or offline
        sessions. One call examines at most 1000 sessions. A page may therefore be short, or empty, although more
        sessions follow.

        Raises PluginError for a `limit` outside 1 to 1000, and for a cursor that is malformed or belongs to another call
        or other arguments. Raises StaleCursor, a PluginError, for a cursor that is older than this broker process. Every
        paged call below raises these errors too. All of them raise PluginError in a thread.
        """

    def subscriptions(
        self, cursor: str = "", limit: int = 100, *, client_id: str = "", filter: str = ""
    ) -> Page[SubscriptionSnapshot]:
        """Return a page of the subscriptions, session by session. A subscription that exists from the first page to the
        last is returned exactly once.

        `client_id` selects one session. `filter` selects the subscriptions that overlap it. If `filter` is a topic,
        these are the subscriptions that match the topic. With ``$share/NAME/FILTER``, only subscriptions with this
        share name are considered. One call examines at most 1000 sessions and subscriptions; it may exceed this limit
        by one session's filters. Raises PluginError for an invalid `filter`, and StaleCursor for a cursor of a session
        that has ended.
        """

    def queue(
        self, client_id: str, cursor: str = "", limit: int = 100
    ) -> Awaitable[Page[QueuedMessage]]:
        """Return a page of a session's queue, beginning with the next message to send. This does not change the queue.

        Messages that are not in memory are read from the store, once everything recorded before this call is committed. A
        page of such messages contains at most 4 MiB, unless its first message is larger. QoS 0 messages for a slow client
        are not included. Some of the messages may have expired. The page is empty if there is no session. Awaiting raises
        PluginError if the store fails. The call raises StaleCursor for a cursor of a session that has ended.
        """

    def inflight(self, client_id: str, cursor: str = "", limit: int = 100) -> Page[InflightMessage]:
        """Return a page of the messages in flight to a client, sorted by packet id.

        The page is empty if there is no session. Raises StaleCursor for a cursor of a session that has ended.
        """

    def retained(self, filter: str = "#", cursor: str = "", limit: int = 100) -> Page[Message]:
        """Return a page of the retained messages that match `filter`, in no particular order.

        A topic that has a message throughout the listing is returned exactly once, with its current message. ``#``
        excludes topics that start with ``$``.

        Each cursor can be used once. A plugin can have 32 open searches. Opening another one ends the least recently used
        search, and makes its cursor stale. Raises StaleCursor for a stale cursor, and PluginError for an invalid
        `filter`.
        """

    def shared_groups(self, cursor: str = "", limit: int = 100) -> Page[SharedGroup]:
        """Return a page of the shared subscriptions. A shared subscription that exists from the first page to the last is
        returned exactly once. To list the members of one, call `subscriptions` with its filter.
        """

    def listeners(self) -> tuple[ListenerSnapshot, ...]:
        """Return all listeners in configuration order. An in-memory broker has no listeners. Raises PluginError in a
        thread.
        """

    def plugins(self) -> tuple[PluginSnapshot, ...]:
        """Return all configured plugins in configuration order, with their hooks' counters. Raises PluginError in a
        thread.
        """

    def services(self, name: str) -> Mapping[str, object]:
        """Return the objects that plugins offer under `name`, by plugin id, in configuration order.

        Plugins that are disabled or have not finished `on_startup` are left out. A reload may replace a plugin and its
        services, so call this whenever you need a service instead of storing the result. The plugin that offers a
        service documents its interface. Raises PluginError in a thread.
        """

    def configuration(self) -> str:
        """Return the configuration in force as YAML, as ``hookmq config show`` prints it: secrets are masked. The
        result is empty if the broker has no configuration file, as in tests. The call takes a few milliseconds. Raises
        PluginError in a thread.
        """

    def counters(self) -> Mapping[str, float]:
        """Return the core's metrics by name, as the exporter shows them, without the prefix ``hookmq_``.

        Labels are part of the name: ``messages_dropped_total{direction="out",reason="queue_full"}``. The metrics of
        plugins and ``hookmq_build_info`` are not included. This takes about a millisecond. Raises PluginError in a
        thread.
        """

    @property
    def state(self) -> PluginState:
        """This plugin's durable keys and values. They are loaded before `on_startup` is called."""

    def set_timer(self, key: str, at: float, data: bytes = b"") -> Awaitable[None]:
        """Call this plugin's `on_timer` with `key` and `data` at `at`, in epoch seconds. The awaitable completes after
        the commit.

        The timer is stored like `state`, with the same limits. It replaces any timer with this key. If it becomes due
        while the broker is down, `on_timer` is called after `on_ready`. A hook may set its own key again. Raises
        PluginError if an argument is invalid, if the plugin has no `on_timer`, or if called in a thread.
        """

    def cancel_timer(self, key: str) -> Awaitable[bool]:
        """Delete a timer. After the commit, the awaitable returns whether the timer existed. An `on_timer` call that is
        already running is not stopped, but it is not repeated if it fails. Raises PluginError in a thread.
        """

    def when_committed(self, trace_id: str = "") -> Awaitable[bool]:
        """Wait until this turn's records are committed, such as the record of the message passed to `on_publish`.

        Call it in `on_publish`, which returns before the message is recorded. The result is True if a record was added
        after this call in the same turn and had to be written. It is False if nothing was recorded, or if everything
        was acknowledged before the commit. All messages in a turn share a commit, so under load the records may belong
        to other messages. If another plugin decides asynchronously, the message belongs to a later turn and the result
        does not cover it. This call does not delay any message.

        If the result is True, `trace_id` becomes an exemplar of ``hookmq_commit_duration_seconds``. Raises PluginError in
        a thread, or if `trace_id` is neither empty nor 32 lower-case hex digits.
        """

    def append(self, journal: Journal, message: Message) -> None:
        """Add a message to one of this plugin's journals, without publishing it.

        It becomes part of this turn's commit, together with any change to `state` in the same turn. A plugin can thus
        move a message from one journal to another. No hook is called, and the journal is not asked what it wants or
        whether it is full. Raises PluginError if the broker does not have the journal, or in a thread.
        """

    def add_journal(self, journal: Journal) -> Awaitable[None]:
        """Add a journal while the broker runs, for example for a queue that an operator creates.

        The journal must be empty. If a journal has messages from an earlier process, return it from `provide_journal`
        instead, so that uncommitted messages are dropped. The new journal's `recover` is called in a thread, with the
        last commit. When the awaitable completes, the journal receives the messages that it wants. So that a crash loses
        none of them, first record that the journal exists.

        Awaiting raises PluginError with the reason if `recover` fails. The call raises PluginError if the broker
        already has the journal, or in a thread.
        """

    def remove_journal(self, journal: Journal) -> Awaitable[None]:
        """Remove a journal while the broker runs. From now on, the journal gets no messages, and publishes that were
        waiting for room in it stop waiting. The awaitable completes once everything that the journal received earlier is
        committed. After that, the broker no longer calls the journal, and the plugin may close and delete it.

        If the journal has a `full` attribute, set it to False first, so that publishers waiting for room are
        acknowledged. Raises PluginError if the broker does not have the journal, or in a thread.
        """

    def reload(self) -> Awaitable[ReloadReport]:
        """Reread the configuration file and apply it, like SIGHUP. The result lists the applied changes and those that
        need a restart.

        If the new configuration cannot be used, nothing changes, and awaiting raises PluginError with the reason.
        Awaiting also raises PluginError if there is no configuration file, or while the broker is starting or
        stopping. A reload may replace the plugin that requested it. Do not await it in `on_startup`, `on_ready`,
        `on_reload` or `on_shutdown`: the reload waits for these hooks. The call is reported as
        ``broker.reload_applied`` or ``broker.reload_refused``. Raises PluginError in a thread.
        """

    def check_configuration(self, text: str) -> Awaitable[ConfigCheck]:
        """Check a configuration document, with the options and the environment of this process. Nothing changes.

        The result lists all mistakes with their locations, or the changes that reloading this document would make. All
        settings are checked, including those of plugins, but no plugin is constructed and no certificate is opened, so
        a reload may still refuse the document. The work is done in a thread. Awaiting raises PluginError if the broker
        has no configuration file, as in tests. Raises PluginError in a thread.
        """

    def trace(self, request: TraceRequest) -> Trace:
        """Start a trace: report what the broker does with some clients or messages, and which plugin decided what.

        If the request names a client id, user name or address, the trace reports the packets of matching clients in
        both directions. It also reports all hook calls about these clients. If the request names only a topic filter
        or a plugin, the trace reports hook calls and routes for all clients, but no packets. Clients that connect
        later are traced too. Cached verdicts are discarded when the trace starts, so that the trace shows each
        decision once.

        Traces cost nothing while none is running. A traced client does not use the fast path. At most 8 traces can run at
        the same time, and each follows at most 100 connections. Packets and deliveries of plugin clients are not
        reported. The trace ends when the plugin stops. Raises PluginError for an invalid filter, if 8 traces are running,
        or in a thread.
        """

    def drain(self, request: DrainRequest) -> None:
        """Drain the broker without stopping it: ``/readyz`` returns 503, the MQTT listeners close new connections at
        once, and the clients are disconnected in slices, at least 100 ms apart.

        MQTT 5 clients get the reason code 0x8B. If there is a server reference, they get 0x9C instead, or 0x9D if they
        should use that server from now on. Plugin clients stay connected. Sessions, queues and wills are treated as if
        the broker were stopping. Then the broker runs without clients until it is stopped or `cancel_drain` is called.
        Meanwhile, `reload` is refused. The call is reported as ``broker.drain_started``. Raises PluginError in a thread,
        if the broker is not ready, or if the request needs a reference but has none.
        """

    def cancel_drain(self) -> bool:
        """End a drain: accept connections again. Return False if the broker is not draining. The call is reported
        as ``broker.drain_cancelled``. Raises PluginError in a thread.
        """

    def drain_status(self) -> DrainStatus:
        """Return how far a drain has progressed. Raises PluginError in a thread."""

    def log_levels(self) -> LogLevels:
        """Return the log level in force, and ``log.level`` from the configuration. Raises PluginError if the broker has
        no log of its own, as in tests, or in a thread.
        """

    def set_log_level(self, level: LogLevel) -> None:
        """Log events at `level` and above from now on: ``debug``, ``info``, ``warning`` or ``error``.

        A reload or a restart restores ``log.level`` from the configuration. The call is reported as
        ``broker.log_level_set``. Raises PluginError for any other level, and in the same cases as `log_levels`.
        """

    def follow_log(self, recent: int = 0) -> LogFollower:
        """Follow the log, starting with the latest `recent` events (up to 500).

        Only events that are logged can be followed: see `set_log_level`. This plugin's own events are included, so do not
        log an event for each one you receive. Following ends when the plugin stops. Raises PluginError in the same cases
        as `log_levels`.
        """

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log `event` with this plugin's id. See `Plugin.log`."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""

    def time(self) -> float:
        """Return the current time in epoch seconds."""
