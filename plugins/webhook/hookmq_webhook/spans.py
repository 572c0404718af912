"""Report requests for traced messages to the plugins that record spans; see `hookmq_toolkit.spans`."""

from collections.abc import Sequence
from typing import NamedTuple

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.spans import SERVICE, SpanRecorder
from yarl import URL

from hookmq_webhook.config import WebhookConfig


class Traced(NamedTuple):
    """An event with a ``traceparent``: its id, type, topic and trace."""

    id: str
    type: str
    topic: str | None
    trace: str


def recorders(broker: BrokerHandle) -> list[SpanRecorder]:
    """Return the services that record spans."""
    return [one for one in broker.services(SERVICE).values() if isinstance(one, SpanRecorder)]


def report(
    broker: BrokerHandle,
    plugin_id: str,
    config: WebhookConfig,
    traced: Sequence[Traced],
    events: int,
    began: float,
    ended: float,
    error: str,
) -> None:
    """Report a request with `events` events as one span for each of those in `traced`. Times are in epoch seconds."""
    for one in traced:
        attributes: dict[str, str | int | float | bool] = {
            "hookmq.plugin": plugin_id,
            "hookmq.event": one.type,
            "hookmq.events": events,
            "http.request.method": config.method.upper(),
            # The rest of the URL may contain values of the event, or keys.
            "server.address": URL(config.url.partition("$")[0]).host or "",
        }
        if one.topic is not None:
            attributes["messaging.destination.name"] = one.topic
        for recorder in recorders(broker):
            try:
                recorder.record("webhook", one.trace, began, ended, attributes, error)
            except Exception as failed:
                broker.log("error", "webhook.span_not_recorded", id=one.id, reason=repr(failed))
