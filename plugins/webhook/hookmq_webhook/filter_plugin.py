"""The second plugin of this distribution, `use: webhook_filter`: an HTTP service says what becomes of each message."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Drop,
    Message,
    Plugin,
    hookimpl,
)

from hookmq_webhook import catalog
from hookmq_webhook.config import SignConfig, exposed
from hookmq_webhook.envelope import Envelope, data_of
from hookmq_webhook.filter_answers import Unusable, Verdict, read_answer
from hookmq_webhook.filter_config import FilterPluginConfig
from hookmq_webhook.filter_service import Counts, Service, Unavailable
from hookmq_webhook.sender import context_of
from hookmq_webhook.signature import key_of, sign

SLACK: Final = 0.5
"""Seconds by which the hook's deadline is later than ours, so that it is we who say what happened."""
_ENVELOPE_ROOM: Final = 1 << 40
_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}


class Undecided(Exception):
    """Nobody knows what becomes of the message; ``on_error`` of the entry says."""


class WebhookFilterPlugin(Plugin):
    """Messages go on, are changed or go no further, as an HTTP service says."""

    Config = FilterPluginConfig
    config: FilterPluginConfig

    def __init__(self, config: FilterPluginConfig, context: Context) -> None:
        super().__init__(config, context)
        self.timeouts = {"on_publish": config.timeout + SLACK}
        self.verdicts: dict[str, int] = {}
        """Answers, by what they say."""
        self._keys = _keys(config.sign)
        self._context: ssl.SSLContext | None = None
        if config.tls is not None:
            try:
                self._context = context_of(config.tls)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"tls: {error}") from None
        self._envelope = Envelope("", "", payload=config.payload, max_event=_ENVELOPE_ROOM)
        self._service: Service | None = None
        self._broker: BrokerHandle | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What `hookmq check` is to say of the configuration."""
        host = exposed(self.config.url)
        return (
            (f"messages go to {host} in the clear, and so do decisions: use https",) if host else ()
        )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """No connection is opened yet."""
        self._broker = broker
        self._service = Service(self.config, self._context, broker.now)

    @hookimpl
    async def on_shutdown(self) -> None:
        """Ends what is under way."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    @hookimpl
    async def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Deny | None:
        """Ask about a message that comes in, be it a will."""
        verdict: Verdict
        try:
            if len(message.payload) > self.config.max_payload:
                raise Unusable(f"a payload of more than {self.config.max_payload} bytes")
            if self._service is None:
                raise Unavailable("not started")
            body = data_of(self._envelope, catalog.published(message, client))
            headers = {**self.config.headers, "Content-Type": "application/json"}
            if self._keys:
                id = f"filter-{broker.runtime.token(16)}"
                headers |= sign(id, int(broker.time()), body, self._keys)
            status, answer = await self._service.ask(headers, body)
            verdict = read_answer(status, answer, message)
        except (Unavailable, Unusable) as error:
            self._count("undecided")
            place = self.config.url.partition("?")[0]
            raise Undecided(f"{place}: {error}") from None
        self._count(_name(verdict))
        return verdict

    def _count(self, name: str) -> None:
        self.verdicts[name] = self.verdicts.get(name, 0) + 1

    @hookimpl
    def register_metrics(self, registry: Any) -> None:
        """Adds ``hookmq_webhook_filter_*``."""

        def counts() -> Counts:
            return self._service.counts if self._service is not None else Counts()

        def answers() -> list[tuple[Mapping[str, str], int]]:
            return [({"verdict": name}, count) for name, count in self.verdicts.items()]

        registry.counter(
            "webhook_filter_messages_total", "Messages, by what came of them.", answers
        )
        registry.counter(
            "webhook_filter_failures_total",
            "Requests without an answer.",
            lambda: counts().failures,
        )
        registry.counter(
            "webhook_filter_refused_total",
            "Requests not made: too many waited, or the circuit was open.",
            lambda: counts().refused,
        )
        registry.gauge("webhook_filter_waiting", "Messages in line.", lambda: counts().waiting)
        registry.gauge("webhook_filter_running", "Requests under way.", lambda: counts().running)
        registry.gauge(
            "webhook_filter_circuit",
            "0 closed, 1 half-open, 2 open.",
            lambda: _STATES[self._service.breaker.state] if self._service is not None else 0,
        )
        registry.summary(
            "webhook_filter_request_seconds",
            "Time of one request.",
            lambda: [({}, counts().requests, counts().seconds)],
        )


def _name(verdict: Verdict) -> str:
    if verdict is None:
        return "allow"
    if isinstance(verdict, Message):
        return "replace"
    return "deny" if isinstance(verdict, Deny) else "drop"


def _keys(config: SignConfig | None) -> tuple[bytes, ...]:
    made: list[bytes] = []
    for name in ("secret", "previous_secret"):
        secret = getattr(config, name, None)
        if secret is not None:
            try:
                made.append(key_of(secret))
            except ValueError as error:
                raise ConfigError(f"sign.{name}: {error}") from None
    return tuple(made)
