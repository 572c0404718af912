"""Implement the `security_log` plugin: one stream of security events."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import (
    Action,
    BrokerHandle,
    ClientInfo,
    Context,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    ReasonCode,
    SessionEvent,
    Subscription,
    Timer,
    hookimpl,
)

from hookmq_security_log.aggregate import Aggregator, Alerts
from hookmq_security_log.log_file import LogFile
from hookmq_security_log.record import Record, SecurityEvent, line_of, split_peer
from hookmq_security_log.settings import SecurityLogConfig
from hookmq_security_log.takeovers import Takeovers

PREFIX: Final = "$SYS/security/"
CREDENTIALS: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""The codes that refuse a client because of its credentials. Other codes mean a limit or a failure."""
OF_BROKER: Final[Mapping[str, str]] = {
    "broker.protocol_error": "protocol_error",
    "broker.handshake_failed": "handshake_failure",
    "broker.connection_refused": "connection_refused",
}
"""The broker's own events, and the names of the security events that they cause."""


class SecurityLogPlugin(Plugin):
    """Writes security events to the broker's log, to a file and to topics below ``$SYS/security``, and passes them to
    other plugins.

    Names and topics are chosen by clients. Records therefore escape them, limit their length and never contain
    passwords. The number of records is limited per address and in total.
    """

    Config = SecurityLogConfig
    config: SecurityLogConfig

    def __init__(self, config: SecurityLogConfig, context: Context) -> None:
        super().__init__(config, context)
        self._aggregator = Aggregator(
            config.burst, config.period, config.max_rate, config.max_sources
        )
        # Alerts have their own share of `max_rate`, so that many events cannot hide them.
        self._alerted = Aggregator(1, config.period, config.max_rate, config.max_sources)
        self._alerts = Alerts(config.alert.events, config.alert.period, config.max_sources)
        flapping = config.flapping
        self._takeovers = Takeovers(flapping.takeovers, flapping.period, config.max_sources)
        self._counts: dict[str, int] = {}
        self._file: LogFile | None = None
        self._timer: Timer | None = None
        self._broker: BrokerHandle | None = None
        self._ending = False
        if not config.watch.publish:
            self.idle_hooks = frozenset({"on_published"})

    # lifecycle ----------------------------------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Start writing."""
        self._broker = broker
        config = self.config
        if config.file:
            self._file = LogFile(Path(config.file), config.max_bytes, config.files, self._reported)
        self._timer = broker.runtime.call_later(config.period, self._tick)

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle) -> None:
        """Write the counts for the current periods, and close the file."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        # Other plugins may have ended before, so the last records go to the log and the file only.
        self._ending = True
        self._flush(broker, end=True)
        if self._file is not None:
            await self._file.close(broker)
        self._broker = None

    def _tick(self) -> None:
        broker = self._broker
        if broker is not None:
            self._flush(broker)
            self._timer = broker.runtime.call_later(self.config.period, self._tick)

    def _flush(self, broker: BrokerHandle, end: bool = False) -> None:
        now, time = broker.now(), broker.time()
        self._write(self._alerted.due(now, time, end) + self._aggregator.due(now, time, end))

    # events -------------------------------------------------------------------------------------------------------

    @hookimpl
    async def on_auth_failed(self, client: ClientInfo, code: ReasonCode, reason: str) -> None:
        """Report a client that was refused."""
        action = "authentication_failure" if code in CREDENTIALS else "connection_refused"
        self._report(action, client, reason or code.text, **_code(code))

    @hookimpl
    async def on_denied(
        self, client: ClientInfo | None, action: Action, topic: str, code: ReasonCode, rule: str
    ) -> None:
        """Report a refused action. Refused deliveries are omitted, because the publisher causes them, not this client."""
        if client is None or action is Action.DELIVER:
            return
        fields = {"rule.name": rule, "hookmq.action": action.value, "hookmq.topic": topic}
        self._report(
            "authorization_denied", client, f"{action.value} denied", **fields, **_code(code)
        )

    @hookimpl
    async def on_session(
        self, client: ClientInfo, event: SessionEvent, broker: BrokerHandle
    ) -> None:
        """Report a session that another address has taken over, or that is taken over too often."""
        host = client.peer.host
        if event is SessionEvent.TAKEN_OVER:
            if self._takeovers.taken(client.client_id, host, broker.now()):
                count = self.config.flapping.takeovers
                self._report("client_flapping", client, f"taken over more than {count} times")
        elif event in (SessionEvent.CREATED, SessionEvent.RESUMED):
            before = self._takeovers.opened(client.client_id, host)
            if before:
                message = f"the session was at {before} before"
                self._report("session_takeover", client, message, **{"hookmq.previous_ip": before})

    @hookimpl
    async def on_subscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        """Report a subscription to a watched filter."""
        for filter in self.config.watch.subscribe:
            if self.contains(subscription.topic_filter, filter):
                self._watched(client, "subscribe", subscription.filter)
                return

    @hookimpl
    async def on_published(self, client: ClientInfo | None, message: Message) -> None:
        """Report a message to a watched topic. Messages from plugins or the broker itself are not reported."""
        if client is not None and any(
            self.matches(filter, message.topic) for filter in self.config.watch.publish
        ):
            self._watched(client, "publish", message.topic)

    def _watched(self, client: ClientInfo, action: str, topic: str) -> None:
        fields = {"hookmq.action": action, "hookmq.topic": topic}
        self._report("topic_watched", client, f"{action} to a watched topic", **fields)

    @hookimpl
    async def on_event(
        self, client: ClientInfo | None, event: str, fields: Mapping[str, object], plugin: str
    ) -> None:
        """Report events from the broker and other plugins.

        These are protocol errors, failed handshakes, refused connections, bans and limits of `ratelimit`, and wrong
        `admin` tokens.
        """
        if not plugin:
            action = OF_BROKER.get(event)
            if action is not None:
                self._of_broker(action, client, fields)
        elif event == "ratelimit.banned":
            kind, name = fields.get("kind"), fields.get("name")
            message = f"{kind} banned: {fields.get('why')}"
            more = {"hookmq.ban.kind": kind, "hookmq.ban.name": name}
            more["hookmq.ban.seconds"] = fields.get("seconds")
            host = str(name) if kind == "ip" and client is None else ""
            self._report("client_banned", client, message, host, **more)
        elif event == "admin.refused":
            host = str(fields.get("address", ""))
            self._report("authentication_failure", None, "wrong token of the admin API", host)
        elif event == "ratelimit.limited":
            limit = fields.get("limit")
            self._report("rate_exceeded", client, f"over {limit}", **{"rule.name": str(limit)})

    def _of_broker(
        self, action: str, client: ClientInfo | None, fields: Mapping[str, object]
    ) -> None:
        host, port = split_peer(str(fields.get("peer", "")))
        message = str(fields.get("detail") or fields.get("error") or fields.get("why") or action)
        more: dict[str, Any] = {"hookmq.listener": fields.get("listener")}
        code = fields.get("code")
        if isinstance(code, int):
            more |= _code(code)
        self._report(action, client, message, host, port, **more)

    # output -------------------------------------------------------------------------------------------------------

    def _report(
        self,
        action: str,
        client: ClientInfo | None,
        message: str,
        host: str = "",
        port: int = 0,
        /,
        **fields: Any,
    ) -> None:
        broker = self._broker
        if broker is None:
            return
        if client is not None:
            host, port = client.peer.host, client.peer.port
            fields = {
                "user.name": client.username,
                "user.id": client.identity,
                "hookmq.client_id": client.client_id,
                "hookmq.listener": client.listener,
                "network.transport": client.peer.transport,
                **fields,
            }
        event = SecurityEvent(action, broker.time(), message, host, port, fields)
        now = broker.now()
        self._counts[action] = self._counts.get(action, 0) + 1
        self._write(self._aggregator.add(event, now))
        alert = self._alerts.add(event, now)
        if alert is not None:
            self._counts[alert.action] = self._counts.get(alert.action, 0) + 1
            self._write(self._alerted.add(alert, now))

    def _write(self, records: list[Record]) -> None:
        broker = self._broker
        if broker is None:
            return
        for record in records:
            line = line_of(record)
            if self._file is not None:
                self._file.add(line, broker)
            if self.config.log:
                broker.log(str(record["log.level"]), "security.event", **record)
            if self._ending:
                continue
            if self.config.topics:
                try:
                    broker.publish(PREFIX + record["event.action"], line.encode())
                except PluginError as error:
                    broker.log("warning", "security_log.not_published", error=str(error))
            broker.emit(f"security.{record['event.action']}", None, **record)

    def _reported(self, error: BaseException | None) -> None:
        broker, file = self._broker, self.config.file
        if broker is None:
            return
        if error is not None:
            broker.log("error", "security_log.write_failed", file=file, error=_text(error))
        else:
            broker.log("info", "security_log.writing_again", file=file)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the event counters."""
        registry.counter(
            "security_events_total",
            "Security events, whether they were written or counted.",
            lambda: [({"event": name}, count) for name, count in self._counts.items()],
        )
        registry.counter(
            "security_records_dropped_total",
            "Records that were not written.",
            lambda: [
                ({"reason": "rate"}, self._aggregator.suppressed + self._alerted.suppressed),
                ({"reason": "disk"}, 0 if self._file is None else self._file.dropped),
            ],
        )


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, OSError) else repr(error)


def _code(code: int) -> dict[str, str]:
    return {"error.code": f"0x{code:02X}"}
