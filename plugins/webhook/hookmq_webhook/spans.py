"""Report requests for traced messages to the plugins that record spans; see `hookmq_toolkit.spans`."""

from collections.abc import Sequence

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.spans import SERVICE, SpanRecorder
from yarl import URL

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.parcels import Answer, Verdict
from hookmq_webhook.queues import Numbered


def report(
    broker: BrokerHandle,
    plugin_id: str,
    config: WebhookConfig,
    events: Sequence[Numbered],
    began: float,
    answer: Answer,
) -> None:
    """Report a request that began at `began`, in epoch seconds, as one span for each event with a ``traceparent``."""
    recorders = [one for one in broker.services(SERVICE).values() if isinstance(one, SpanRecorder)]
    if not recorders:
        return
    ended = broker.time()
    error = "" if answer.verdict is Verdict.ARRIVED else answer.reason or answer.verdict.value
    for one in events:
        event = one.event
        if event.trace is None:
            continue
        attributes: dict[str, str | int | float | bool] = {
            "hookmq.plugin": plugin_id,
            "hookmq.event": event.type,
            "hookmq.events": len(events),
            "http.request.method": config.method.upper(),
            # The rest of the URL may contain values of the event, or keys.
            "server.address": URL(config.url.partition("$")[0]).host or "",
        }
        if event.topic is not None:
            attributes["messaging.destination.name"] = event.topic
        for recorder in recorders:
            try:
                recorder.record("webhook", event.trace, began, ended, attributes, error)
            except Exception as failed:
                # The request is done. An exception here would send it again.
                broker.log("error", "webhook.span_not_recorded", id=one.id, reason=repr(failed))
