"""List all event types with their hooks and fields.

`hookmq_webhook.reference` generates the JSON Schemas and docs/reference/webhook-events.md from this table.
`hookmq_webhook.hook_events` creates the events. The client id, topic and payload are members of `Event`, not of its
data; `hookmq_webhook.envelope` adds them to the fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hookmq.plugin import Action, DropReason, EndedBy

from hookmq_webhook.fields import (
    BASE64,
    BOOL,
    CLIENT,
    COUNT,
    DELIVERED,
    MESSAGE,
    NAME,
    PUBLISHER,
    RECEIVER,
    REFUSED,
    SECONDS,
    SUBSCRIPTION,
    TEXT,
    WHO,
    Field,
    one_of,
)


@dataclass(frozen=True)
class Kind:
    """An event type.

    `client` and `topic` are true if events of this type concern a client or a topic. `payload` is true if they contain
    a message's payload.
    """

    name: str
    hook: str
    help: str
    fields: tuple[Field, ...]
    client: bool = False
    topic: bool = False
    payload: bool = False


_SESSION: Final = "The session of a client id "

_KINDS: Final = (
    Kind(
        "client.connected",
        "on_session",
        "A client was accepted.",
        (
            *CLIENT,
            Field("clean_start", BOOL, "true if the client requested a new session"),
            Field("keep_alive", COUNT, "keep alive in seconds"),
            Field("session_present", BOOL, "true if the client resumed its session"),
        ),
        client=True,
    ),
    Kind(
        "client.disconnected",
        "on_disconnect",
        "The connection of an accepted client ended.",
        (
            *CLIENT,
            *REFUSED,
            Field("by", one_of(*EndedBy), "side that ended the connection"),
            Field("will", BOOL, "true if the client's will is published, now or after its delay"),
            Field("error", TEXT, "description of the error", False),
            Field("connected_seconds", SECONDS, "duration of the connection"),
        ),
        client=True,
    ),
    Kind(
        "client.auth_failed",
        "on_auth_failed",
        "A client was refused at CONNECT or at reauthentication.",
        (
            *(field for field in CLIENT if field.name not in ("identity", "version")),
            Field(
                "version",
                {"type": "integer", "enum": [0, 3, 4, 5]},
                "MQTT version: 3 is 3.1, 4 is 3.1.1, 0 is unknown (no CONNECT was read)",
            ),
            *REFUSED,
            Field("reason", TEXT, "description of the reason", False),
        ),
        client=True,
    ),
    Kind(
        "client.denied",
        "on_denied",
        "An action of a client was denied.",
        (
            *CLIENT,
            *REFUSED,
            Field("action", one_of(*Action), "denied action"),
            Field("topic", TEXT, "topic, or filter of a subscription"),
            Field("rule", NAME, "plugin, rule of a plugin, or setting that denied the action"),
        ),
        client=True,
        topic=True,
    ),
    Kind("session.created", "on_session", f"{_SESSION}began.", CLIENT, client=True),
    Kind("session.resumed", "on_session", f"{_SESSION}was resumed.", CLIENT, client=True),
    Kind(
        "session.taken_over",
        "on_session",
        f"{_SESSION}was taken over by another connection; the fields describe the old one.",
        CLIENT,
        client=True,
    ),
    Kind(
        "session.expired",
        "on_session",
        f"{_SESSION}expired while the client was offline.",
        CLIENT,
        client=True,
    ),
    Kind(
        "session.ended",
        "on_session",
        f"{_SESSION}ended because its connection ended, or because the client started a new session.",
        CLIENT,
        client=True,
    ),
    Kind(
        "subscription.created",
        "on_subscribed",
        "A subscription was granted.",
        (*WHO, *SUBSCRIPTION),
        client=True,
        topic=True,
    ),
    Kind(
        "subscription.removed",
        "on_unsubscribed",
        "A subscription ended: by UNSUBSCRIBE, by revocation, or because its session ended.",
        (*WHO, *SUBSCRIPTION),
        client=True,
        topic=True,
    ),
    Kind(
        "message.published",
        "provide_journal, on_published",
        "A message was accepted. Wills and messages from plugins are included.",
        (*PUBLISHER, *MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.delivered",
        "on_delivered",
        "A message was delivered: written to a subscriber (QoS 0) or acknowledged by it (QoS 1, 2).",
        DELIVERED,
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.acked",
        "on_delivered",
        "A subscriber acknowledged a message: message.delivered at QoS 1 and 2.",
        DELIVERED,
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.dropped",
        "on_dropped",
        "A message was dropped; client_id is the publisher (in) or the subscriber (out).",
        (
            *(field._replace(always=False) for field in RECEIVER),
            Field("reason", one_of(*DropReason), "reason of the drop"),
            Field(
                "direction",
                one_of("in", "out"),
                "in: on its way into the broker; out: on its way to a subscriber",
            ),
            Field(
                "detail", TEXT, "plugin, limit or shared subscription that caused the drop", False
            ),
            *MESSAGE,
        ),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.retained",
        "on_retained",
        "A message became the retained message of its topic.",
        (PUBLISHER[0], *MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.cleared",
        "on_retained",
        "A topic no longer has a retained message.",
        (MESSAGE[0],),
        topic=True,
    ),
    Kind(
        "will.published",
        "on_published",
        "The will of a client was published. The event message.published is also sent.",
        (PUBLISHER[0]._replace(always=True), *MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "broker.started",
        "on_ready",
        "All listeners are open.",
        (Field("version", NAME, "version of HookMQ"),),
    ),
    Kind(
        "broker.stopping",
        "on_shutdown",
        "The broker is stopping, or this plugin was removed from the configuration.",
        (
            Field("version", NAME, "version of HookMQ"),
            Field("seconds", SECONDS, "time limit of the shutdown"),
        ),
    ),
    Kind(
        "broker.reloaded",
        "on_reload",
        "The configuration was reloaded.",
        (
            Field(
                "changed",
                {"type": "array", "items": NAME},
                "changed settings in the sections broker, session, auth and authz",
            ),
        ),
    ),
    Kind(
        "ratelimit.limited",
        "on_event",
        "A client exceeded a rate limit. Sent once per limit and period.",
        (
            *(field._replace(always=False) for field in WHO),
            Field("plugin", NAME, "plugin id"),
            Field("limit", NAME, "name of the limit"),
            Field("outcome", NAME, "consequence, such as throttled, refused or dropped"),
            Field("per", NAME, "scope of the limit, such as client"),
            Field("key", TEXT, "client, user or address that exceeded the limit"),
        ),
        client=True,
    ),
    Kind(
        "ratelimit.banned",
        "on_event",
        "A client, user or address was banned temporarily.",
        (
            *(field._replace(always=False) for field in WHO),
            Field("plugin", NAME, "plugin id"),
            Field("kind", NAME, "client, user, ip or client_id"),
            Field("name", TEXT, "banned client, user or address"),
            Field("seconds", SECONDS, "duration of the ban"),
            Field("why", NAME, "reason: flapping, or the limit that was exceeded too often"),
        ),
        client=True,
    ),
)

SCHEMAS: Final = "urn:hookmq:event:"
"""Beginning of the `$id` of each event's JSON Schema. The event type follows."""

CATALOG: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""All event types by name.

Events that other plugins emit with `BrokerHandle.emit` have names and fields of their own.
"""

OTHER: Final = Kind(
    "PLUGIN.EVENT",
    "on_event",
    "An event from another plugin, under the name chosen by that plugin.",
    (
        *(field._replace(always=False) for field in WHO),
        Field("plugin", NAME, "plugin id"),
    ),
    client=True,
)
"""The type of the events that other plugins emit."""

PAYLOAD: Final = (
    Field("payload_size", COUNT, "size of the payload in bytes"),
    Field(
        "payload_format",
        one_of("json", "text", "base64", "omitted"),
        "form of the payload: in payload (json, text), or in payload_base64 (base64)",
    ),
    Field("payload", {}, "payload as a JSON value or as text", False),
    Field("payload_base64", BASE64, "payload in base64", False),
    Field(
        "left_out",
        {"type": "array", "items": one_of("payload", "user_properties")},
        "fields that were omitted because the event was larger than max_event",
        False,
    ),
)
"""The fields that `hookmq_webhook.envelope` adds to events with a payload."""


def hooks_of(types: frozenset[str]) -> frozenset[str]:
    """Return the hooks that these event types need. Event types of other plugins need `on_event`."""
    found = {"on_event"} if types - CATALOG.keys() else set()
    for name in types & CATALOG.keys():
        found.update(CATALOG[name].hook.split(", "))
    return frozenset(found)


def field_names(kind: Kind) -> frozenset[str]:
    """Return the names of all fields that events of this type may have."""
    extra = PAYLOAD if kind.payload else ()
    return frozenset(field.name for field in (*kind.fields, *extra))
