"""The `webhook_filter` plugin, which lets an HTTP service allow, change, drop or deny each message."""

from collections.abc import Mapping, Sequence
from typing import Final

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    Context,
    Deny,
    Drop,
    Message,
    MetricRegistry,
    Plugin,
    hookimpl,
)
from hookmq_toolkit.http_client import HttpRequest, Unavailable, register_service_metrics
from hookmq_toolkit.service_url import clear_text_host
from hookmq_toolkit.tls_client import check_tls
from hookmq_webhook_receiver.signature import sign

from hookmq_webhook import hook_events
from hookmq_webhook.envelope import Envelope, data_of
from hookmq_webhook.filter_answers import Unusable, Verdict, read_answer
from hookmq_webhook.filter_config import FilterPluginConfig
from hookmq_webhook.filter_service import FilterService
from hookmq_webhook.signing import signing_keys

SLACK: Final = 0.5
"""Seconds by which the broker's time limit exceeds the plugin's, so that the plugin can report the reason."""
_ENVELOPE_ROOM: Final = 1 << 40


class Undecided(Exception):
    """The service did not decide. The `on_error` setting of the plugin entry determines what happens to the message."""


class WebhookFilterPlugin(Plugin):
    """A plugin that asks an HTTP service to decide on each message."""

    Config = FilterPluginConfig
    config: FilterPluginConfig

    def __init__(self, config: FilterPluginConfig, context: Context) -> None:
        super().__init__(config, context)
        self.timeouts = {"on_publish": config.timeout + SLACK}
        self.verdicts: dict[str, int] = {}
        """Number of messages by verdict."""
        self._keys = signing_keys(config.sign)
        self._tls = check_tls(config.tls)
        self._envelope = Envelope("", "", payload=config.payload, max_event=_ENVELOPE_ROOM)
        self._service: FilterService | None = None
        self._broker: BrokerHandle | None = None

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the configuration, for `hookmq check`."""
        host = clear_text_host(self.config.url)
        if not host:
            return ()
        return (f"messages to {host} and its decisions are not encrypted: use https",)

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Create the HTTP client for the service. Opens no connection yet."""
        self._broker = broker
        self._service = FilterService(self.config, self._tls, broker.now)

    @hookimpl
    async def on_shutdown(self) -> None:
        """Cancel requests in progress and close all connections."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    @hookimpl
    async def on_publish(
        self, client: ClientInfo | None, message: Message, broker: BrokerHandle
    ) -> Message | Drop | Deny | None:
        """Ask the service to decide on a message or will. Raises Undecided."""
        verdict: Verdict
        try:
            if len(message.payload) > self.config.max_payload:
                raise Unusable(f"a payload of more than {self.config.max_payload} bytes")
            if self._service is None:
                raise Unavailable("not started")
            body = data_of(self._envelope, hook_events.published(message, client))
            headers = {**self.config.headers, "Content-Type": "application/json"}
            trace = hook_events.traceparent(message)
            if trace is not None:
                headers["traceparent"] = trace
            if self._keys:
                id = f"filter-{broker.runtime.token(16)}"
                headers |= sign(id, int(broker.time()), body, self._keys)
            request = HttpRequest("POST", self.config.url, headers, body)
            status, answer = await self._service.ask(request)
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
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the ``hookmq_webhook_filter_*`` metrics."""

        def answers() -> list[tuple[Mapping[str, str], int]]:
            return [({"verdict": name}, count) for name, count in self.verdicts.items()]

        registry.counter("webhook_filter_messages_total", "Messages, by verdict.", answers)
        register_service_metrics(registry, "webhook_filter", lambda: self._service)


def _name(verdict: Verdict) -> str:
    if verdict is None:
        return "allow"
    if isinstance(verdict, Message):
        return "replace"
    return "deny" if isinstance(verdict, Deny) else "drop"
