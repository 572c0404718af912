"""Create requests: encode events in an envelope, and sign the result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hookmq.plugin import ConfigError
from hookmq_toolkit.templates import Template
from hookmq_webhook_receiver.signature import SIGNATURE, sign

from hookmq_webhook.bodies import Body
from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.config import PAYLOAD_PLACE, WebhookConfig
from hookmq_webhook.envelope import Envelope, encode, request_id
from hookmq_webhook.filters import select
from hookmq_webhook.queues import Numbered
from hookmq_webhook.signing import signing_keys


class Requests(Protocol):
    """The functions that a sender needs to create requests."""

    def encode(self, events: Sequence[Numbered]) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of a request with `events`. Raises ValueError."""

    def sign(self, events: Sequence[Numbered], time: float, *bodies: bytes) -> Mapping[str, str]:
        """Return the signature headers for `bodies`: the body as sent and, if it is compressed, the original body."""


class RequestMaker:
    """The `Requests` of one plugin instance.

    Event ids begin with the epoch of the event's queue. Dead letters keep their original epoch.
    """

    def __init__(
        self, config: WebhookConfig, plugin_id: str, keep: Callable[[str], bool] | None
    ) -> None:
        self._config = config
        self._source = config.source or f"urn:hookmq:{plugin_id}"
        self._keep = keep
        self._body = Body(config.body) if config.body is not None else None
        self._envelopes: dict[str, Envelope] = {}
        self._keys = signing_keys(config.sign)

    def encode(self, events: Sequence[Numbered]) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of a request; see `Requests.encode`."""
        return encode(self._envelope(epoch_of(events)), events)

    def sign(self, events: Sequence[Numbered], time: float, *bodies: bytes) -> Mapping[str, str]:
        """Return the signature headers of a request; see `Requests.sign`. Without secrets, there are none."""
        if not self._keys:
            return {}
        id = request_id(epoch_of(events), events)
        made = [sign(id, int(time), body, self._keys) for body in bodies]
        return made[0] | {SIGNATURE: " ".join(one[SIGNATURE] for one in made)}

    def _envelope(self, epoch: str) -> Envelope:
        found = self._envelopes.get(epoch)
        if found is None:
            config = self._config
            if len(self._envelopes) > 100:
                self._envelopes.clear()
            found = self._envelopes[epoch] = Envelope(
                self._source,
                epoch,
                config.envelope,
                config.batch.count > 1,
                config.payload,
                config.content,
                self._keep,
                config.max_event,
                body=self._body,
                key=config.key,
                dataschema=config.dataschema,
            )
        return found


def epoch_of(events: Sequence[Numbered]) -> str:
    """Return the epoch with which the ids of `events` begin."""
    return events[0].id.rpartition("-")[0]


def request_maker(
    config: WebhookConfig, plugin_id: str, keep: Callable[[str], bool] | None
) -> RequestMaker:
    """Return the `Requests` for a configuration. Raises ConfigError."""
    _check_payload_places(config)
    return RequestMaker(config, plugin_id, keep)


def _check_payload_places(config: WebhookConfig) -> None:
    """Raise ConfigError if the URL or a header needs a payload, but events without one are selected."""
    texts = {"url": config.url} | {f"headers.{name}": one for name, one in config.headers.items()}
    for key, text in texts.items():
        name = next(filter(PAYLOAD_PLACE.fullmatch, Template(text).names), None)
        if name is None:
            continue
        for kind in sorted(select(config.events), key=lambda kind: (kind not in CATALOG, kind)):
            if kind not in CATALOG or not CATALOG[kind].payload:
                raise ConfigError(
                    f"{key}: {kind} has no payload for ${{{name}}}",
                    hint='select events with a payload, such as events: ["message.published"]',
                )
