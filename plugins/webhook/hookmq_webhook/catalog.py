"""List all event types with their hooks and fields, and create events from the hooks' arguments.

`hookmq_webhook.reference` generates the JSON Schemas and docs/reference/webhook-events.md from the table of types. The
functions after the table create the events. The client id, topic and payload are members of `Event`, not of its data;
`hookmq_webhook.envelope` adds them to the fields.
"""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hookmq.plugin import (
    Action,
    ClientInfo,
    DisconnectReason,
    Dropped,
    DropReason,
    EndedBy,
    Message,
    ReasonCode,
    SessionEvent,
    Settings,
    Subscription,
)

from hookmq_webhook.events import Event


class Field(NamedTuple):
    """A field of an event's data. If `always` is true, every event has the field."""

    name: str
    schema: Mapping[str, Any]
    help: str
    always: bool = True


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


_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "minLength": 1}
_BOOL: Final = {"type": "boolean"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_SECONDS: Final = {"type": "number", "minimum": 0}
_QOS: Final = {"type": "integer", "enum": [0, 1, 2]}
_CODE: Final = {"type": "integer", "minimum": 0, "maximum": 255}
_TIME: Final = {"type": "string", "format": "date-time"}
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}
_PAIRS: Final = {
    "type": "array",
    "items": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    },
}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_WHO: Final = (
    Field("client_id", _TEXT, "client id"),
    Field("username", _TEXT, "user name in CONNECT", False),
    Field("identity", _TEXT, "identity established by authentication", False),
    Field("listener", _NAME, "listener of the connection"),
)
_CLIENT: Final = (
    *_WHO,
    Field("host", _TEXT, "address of the client"),
    Field("port", _COUNT, "port of the client"),
    Field("transport", _NAME, "tcp, tls, ws, wss, unix or memory"),
    Field("version", {"type": "integer", "enum": [3, 4, 5]}, "MQTT version: 3 is 3.1, 4 is 3.1.1"),
)
_REFUSED: Final = (
    Field("code", _CODE, "reason code of MQTT 5"),
    Field("code_name", _NAME, "name of the reason code"),
)
_SUBSCRIPTION: Final = (
    Field("filter", _NAME, "filter as the client sent it, with $share/NAME/"),
    Field("topic", _NAME, "filter without $share/NAME/"),
    Field("share", _NAME, "name of the shared subscription", False),
    Field("qos", _QOS, "granted QoS"),
    Field("no_local", _BOOL, "true if the client does not receive its own messages"),
    Field("retain_as_published", _BOOL, "true if deliveries keep the RETAIN flag of the publish"),
    Field(
        "retain_handling",
        {"type": "integer", "enum": [0, 1, 2]},
        "when retained messages are sent for the subscription: 0 always, 1 only if it is new, 2 never",
    ),
    Field("identifier", {"type": "integer", "minimum": 1}, "subscription identifier", False),
)
_MESSAGE: Final = (
    Field("topic", _NAME, "topic of the message"),
    Field("qos", _QOS, "QoS of the message"),
    Field("retain", _BOOL, "true if the message was published with RETAIN"),
    Field("origin", _NAME, "client, will, or plugin:ID"),
    Field("received_at", _TIME, "time at which the broker received the message"),
    Field("expires_at", _TIME, "time at which the message expires", False),
    Field("content_type", _TEXT, "content type set by the publisher", False),
    Field(
        "payload_format_indicator",
        {"type": "integer", "enum": [0, 1]},
        "1 if the publisher declares the payload as UTF-8",
        False,
    ),
    Field("response_topic", _TEXT, "topic for a response", False),
    Field("correlation_data", _BASE64, "data that a response must repeat", False),
    Field("user_properties", _PAIRS, "pairs [name, value], in the publisher's order", False),
)
_PUBLISHER: Final = (
    Field(
        "client_id",
        _TEXT,
        "client id of the publisher; absent for messages from the broker or a plugin",
        False,
    ),
    Field("username", _TEXT, "user name of the publisher, if it is still connected", False),
    Field("identity", _TEXT, "identity of the publisher, if it is still connected", False),
    Field("listener", _NAME, "listener of the publisher, if it is still connected", False),
)
_RECEIVER: Final = (
    *_WHO,
    Field(
        "sender",
        _TEXT,
        "client id of the publisher; absent for messages from the broker or a plugin",
        False,
    ),
)
_DELIVERED: Final = (
    *_RECEIVER,
    *(one._replace(help="QoS of the delivery") if one.name == "qos" else one for one in _MESSAGE),
    Field("publish_qos", _QOS, "QoS with which the message was published"),
)


_SESSION: Final = "The session of a client id "

_KINDS: Final = (
    Kind(
        "client.connected",
        "on_session",
        "A client was accepted.",
        (
            *_CLIENT,
            Field("clean_start", _BOOL, "true if the client requested a new session"),
            Field("keep_alive", _COUNT, "keep alive in seconds"),
            Field("session_present", _BOOL, "true if the client resumed its session"),
        ),
        client=True,
    ),
    Kind(
        "client.disconnected",
        "on_disconnect",
        "The connection of an accepted client ended.",
        (
            *_CLIENT,
            *_REFUSED,
            Field("by", _one_of(*EndedBy), "side that ended the connection"),
            Field("will", _BOOL, "true if the client's will is published, now or after its delay"),
            Field("error", _TEXT, "description of the error", False),
            Field("connected_seconds", _SECONDS, "duration of the connection"),
        ),
        client=True,
    ),
    Kind(
        "client.auth_failed",
        "on_auth_failed",
        "A client was refused at CONNECT or at reauthentication.",
        (
            *(field for field in _CLIENT if field.name not in ("identity", "version")),
            Field(
                "version",
                {"type": "integer", "enum": [0, 3, 4, 5]},
                "MQTT version: 3 is 3.1, 4 is 3.1.1, 0 is unknown (no CONNECT was read)",
            ),
            *_REFUSED,
            Field("reason", _TEXT, "description of the reason", False),
        ),
        client=True,
    ),
    Kind(
        "client.denied",
        "on_denied",
        "An action of a client was denied.",
        (
            *_CLIENT,
            *_REFUSED,
            Field("action", _one_of(*Action), "denied action"),
            Field("topic", _TEXT, "topic, or filter of a subscription"),
            Field("rule", _NAME, "plugin, rule of a plugin, or setting that denied the action"),
        ),
        client=True,
        topic=True,
    ),
    Kind("session.created", "on_session", f"{_SESSION}began.", _CLIENT, client=True),
    Kind("session.resumed", "on_session", f"{_SESSION}was resumed.", _CLIENT, client=True),
    Kind(
        "session.taken_over",
        "on_session",
        f"{_SESSION}was taken over by another connection; the fields describe the old one.",
        _CLIENT,
        client=True,
    ),
    Kind(
        "session.expired",
        "on_session",
        f"{_SESSION}expired while the client was offline.",
        _CLIENT,
        client=True,
    ),
    Kind(
        "session.ended",
        "on_session",
        f"{_SESSION}ended because its connection ended, or because the client started a new session.",
        _CLIENT,
        client=True,
    ),
    Kind(
        "subscription.created",
        "on_subscribed",
        "A subscription was granted.",
        (*_WHO, *_SUBSCRIPTION),
        client=True,
        topic=True,
    ),
    Kind(
        "subscription.removed",
        "on_unsubscribed",
        "A subscription ended: by UNSUBSCRIBE, by revocation, or because its session ended.",
        (*_WHO, *_SUBSCRIPTION),
        client=True,
        topic=True,
    ),
    Kind(
        "message.published",
        "provide_journal, on_published",
        "A message was accepted. Wills and messages from plugins are included.",
        (*_PUBLISHER, *_MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.delivered",
        "on_delivered",
        "A message was delivered: written to a subscriber (QoS 0) or acknowledged by it (QoS 1, 2).",
        _DELIVERED,
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.acked",
        "on_delivered",
        "A subscriber acknowledged a message: message.delivered at QoS 1 and 2.",
        _DELIVERED,
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.dropped",
        "on_dropped",
        "A message was dropped; client_id is the publisher (in) or the subscriber (out).",
        (
            *(field._replace(always=False) for field in _RECEIVER),
            Field("reason", _one_of(*DropReason), "reason of the drop"),
            Field(
                "direction",
                _one_of("in", "out"),
                "in: on its way into the broker; out: on its way to a subscriber",
            ),
            Field(
                "detail", _TEXT, "plugin, limit or shared subscription that caused the drop", False
            ),
            *_MESSAGE,
        ),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.retained",
        "on_retained",
        "A message became the retained message of its topic.",
        (_PUBLISHER[0], *_MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "message.cleared",
        "on_retained",
        "A topic no longer has a retained message.",
        (_MESSAGE[0],),
        topic=True,
    ),
    Kind(
        "will.published",
        "on_published",
        "The will of a client was published. The event message.published is also sent.",
        (_PUBLISHER[0]._replace(always=True), *_MESSAGE),
        client=True,
        topic=True,
        payload=True,
    ),
    Kind(
        "broker.started",
        "on_ready",
        "All listeners are open.",
        (Field("version", _NAME, "version of HookMQ"),),
    ),
    Kind(
        "broker.stopping",
        "on_shutdown",
        "The broker is stopping, or this plugin was removed from the configuration.",
        (
            Field("version", _NAME, "version of HookMQ"),
            Field("seconds", _SECONDS, "time limit of the shutdown"),
        ),
    ),
    Kind(
        "broker.reloaded",
        "on_reload",
        "The configuration was reloaded.",
        (
            Field(
                "changed",
                {"type": "array", "items": _NAME},
                "changed settings in the sections broker, session, auth and authz",
            ),
        ),
    ),
    Kind(
        "ratelimit.limited",
        "on_event",
        "A client exceeded a rate limit. Sent once per limit and period.",
        (
            *(field._replace(always=False) for field in _WHO),
            Field("plugin", _NAME, "plugin id"),
            Field("limit", _NAME, "name of the limit"),
            Field("outcome", _NAME, "consequence, such as throttled, refused or dropped"),
            Field("per", _NAME, "scope of the limit, such as client"),
            Field("key", _TEXT, "client, user or address that exceeded the limit"),
        ),
        client=True,
    ),
    Kind(
        "ratelimit.banned",
        "on_event",
        "A client, user or address was banned temporarily.",
        (
            *(field._replace(always=False) for field in _WHO),
            Field("plugin", _NAME, "plugin id"),
            Field("kind", _NAME, "client, user, ip or client_id"),
            Field("name", _TEXT, "banned client, user or address"),
            Field("seconds", _SECONDS, "duration of the ban"),
            Field("why", _NAME, "reason: flapping, or the limit that was exceeded too often"),
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
        *(field._replace(always=False) for field in _WHO),
        Field("plugin", _NAME, "plugin id"),
    ),
    client=True,
)
"""The type of the events that other plugins emit."""

PAYLOAD: Final = (
    Field("payload_size", _COUNT, "size of the payload in bytes"),
    Field(
        "payload_format",
        _one_of("json", "text", "base64", "omitted"),
        "form of the payload: in payload (json, text), or in payload_base64 (base64)",
    ),
    Field("payload", {}, "payload as a JSON value or as text", False),
    Field("payload_base64", _BASE64, "payload in base64", False),
    Field(
        "left_out",
        {"type": "array", "items": _one_of("payload", "user_properties")},
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


# events from hook arguments ---------------------------------------------------------------------------------------------


def session(time: float, client: ClientInfo, event: SessionEvent) -> tuple[Event, ...]:
    """Return the events for `on_session`. For a new or resumed session, the first event is client.connected."""
    about = _client(client)
    told = Event(f"session.{event}", time, client.client_id, None, client.listener, about)
    if event is not SessionEvent.CREATED and event is not SessionEvent.RESUMED:
        return (told,)
    data = {
        **about,
        "clean_start": client.clean_start,
        "keep_alive": client.keep_alive,
        "session_present": event is SessionEvent.RESUMED,
    }
    return (told._replace(type="client.connected", data=data), told)


def disconnected(time: float, client: ClientInfo, reason: DisconnectReason) -> Event:
    """Return the event for `on_disconnect`."""
    data = {
        **_client(client),
        **_code(reason.code),
        "by": str(reason.by),
        "will": reason.will,
        "connected_seconds": round(max(0.0, time - client.connected_at), 3),
    }
    if reason.error:
        data["error"] = reason.error
    return Event("client.disconnected", time, client.client_id, None, client.listener, data)


def auth_failed(time: float, client: ClientInfo, code: ReasonCode, reason: str) -> Event:
    """Return the event for `on_auth_failed`."""
    data = {**_client(client), **_code(code)}
    data.pop("identity", None)  # the client is not authenticated
    if reason:
        data["reason"] = reason
    return Event("client.auth_failed", time, client.client_id, None, client.listener, data)


def denied(
    time: float, client: ClientInfo, action: Action, topic: str, code: ReasonCode, rule: str
) -> Event:
    """Return the event for `on_denied`."""
    data = {**_client(client), **_code(code), "action": str(action), "rule": rule}
    return Event("client.denied", time, client.client_id, topic, client.listener, data)


def subscribed(time: float, client: ClientInfo, subscription: Subscription) -> Event:
    """Return the event for `on_subscribed`."""
    return _subscription("subscription.created", time, client, subscription)


def unsubscribed(time: float, client: ClientInfo, subscription: Subscription) -> Event:
    """Return the event for `on_unsubscribed`."""
    return _subscription("subscription.removed", time, client, subscription)


def published(message: Message, client: ClientInfo | None) -> Event:
    """Return the event for `on_published` or a journal's `append`. `client` is the publisher, if known."""
    return _message("message.published", message.received_at, message, client)


def will_published(time: float, message: Message) -> Event:
    """Return the additional event for `on_published` if the message is a will."""
    return _message("will.published", time, message, None)


def delivered(time: float, client: ClientInfo, message: Message, qos: int) -> tuple[Event, ...]:
    """Return the events for `on_delivered`: one for QoS 0, two for QoS 1 and 2."""
    told = _received("message.delivered", time, client, message)
    told = told._replace(data={**told.data, "qos": qos, "publish_qos": message.qos})
    return (told, told._replace(type="message.acked")) if qos else (told,)


def dropped(time: float, client: ClientInfo | None, message: Message, why: Dropped) -> Event:
    """Return the event for `on_dropped`."""
    told = _received("message.dropped", time, client, message)
    data = {**told.data, "reason": str(why.reason), "direction": str(why.direction)}
    if why.detail:
        data["detail"] = why.detail
    return told._replace(client=why.client_id, data=data)


def retained(time: float, topic: str, message: Message | None) -> Event:
    """Return the event for `on_retained`. `message` is None if the retained message was removed."""
    if message is None:
        return Event("message.cleared", time, None, topic)
    return _message("message.retained", time, message, None)


def started(time: float, version: str) -> Event:
    """Return the event for `on_ready`."""
    return Event("broker.started", time, data={"version": version})


def stopping(time: float, version: str, seconds: float) -> Event:
    """Return the event for `on_shutdown`."""
    return Event("broker.stopping", time, data={"version": version, "seconds": float(seconds)})


def reloaded(time: float, old: Settings, new: Settings) -> Event:
    """Return the event for `on_reload`."""
    return Event("broker.reloaded", time, data={"changed": changes(old, new)})


def told(
    time: float, client: ClientInfo | None, event: str, values: Mapping[str, object], plugin: str
) -> Event:
    """Return the event for `on_event`."""
    data = {**_plain(values), "plugin": plugin}
    if client is None:
        return Event(event, time, data=data)
    return Event(event, time, client.client_id, None, client.listener, {**_names(client), **data})


def changes(old: Any, new: Any, place: str = "") -> list[str]:
    """Return the dotted names of the settings that differ between `old` and `new`."""
    found: list[str] = []
    for field in fields(old):
        name = f"{place}.{field.name}" if place else field.name
        was, now = getattr(old, field.name), getattr(new, field.name)
        if is_dataclass(was) and is_dataclass(now):
            found += changes(was, now, name)
        elif was != now:
            found.append(name)
    return found


_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def traceparent(message: Message) -> str | None:
    """Return the ``traceparent`` user property, or None if it is missing or invalid (W3C Trace Context)."""
    for name, value in message.user_property:
        if name == "traceparent" and _TRACEPARENT.fullmatch(value):
            return value
    return None


def _names(client: ClientInfo) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if client.username is not None:
        data["username"] = client.username
    if client.identity is not None:
        data["identity"] = client.identity
    return data


def _client(client: ClientInfo) -> dict[str, Any]:
    peer = client.peer
    data = _names(client)
    data["host"] = peer.host
    data["port"] = peer.port
    data["transport"] = peer.transport
    data["version"] = client.version
    return data


def _code(code: ReasonCode) -> dict[str, Any]:
    return {"code": int(code), "code_name": code.text}


def _subscription(type: str, time: float, client: ClientInfo, subscription: Subscription) -> Event:
    data = {
        **_names(client),
        "filter": subscription.filter,
        "qos": subscription.qos,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "retain_handling": subscription.retain_handling,
    }
    if subscription.share is not None:
        data["share"] = subscription.share
    if subscription.identifier is not None:
        data["identifier"] = subscription.identifier
    return Event(type, time, client.client_id, subscription.topic_filter, client.listener, data)


def _message(type: str, time: float, message: Message, client: ClientInfo | None) -> Event:
    data = _names(client) if client is not None else {}
    listener = client.listener if client is not None else ""
    return _with(type, time, message, message.sender, listener, data)


def _received(type: str, time: float, client: ClientInfo | None, message: Message) -> Event:
    data = _names(client) if client is not None else {}
    if message.sender is not None:
        data["sender"] = message.sender
    if client is None:
        return _with(type, time, message, None, "", data)
    return _with(type, time, message, client.client_id, client.listener, data)


def _with(
    type: str,
    time: float,
    message: Message,
    client: str | None,
    listener: str,
    data: dict[str, Any],
) -> Event:
    data["qos"] = message.qos
    data["retain"] = message.retain
    data["origin"] = message.origin
    data["received_at"] = message.received_at
    if message.expires_at is not None:
        data["expires_at"] = message.expires_at
    properties = message.properties
    trace = None
    if properties:
        if properties.content_type is not None:
            data["content_type"] = properties.content_type
        if properties.payload_format_indicator is not None:
            data["payload_format_indicator"] = properties.payload_format_indicator
        if properties.response_topic is not None:
            data["response_topic"] = properties.response_topic
        if properties.correlation_data is not None:
            data["correlation_data"] = base64.b64encode(properties.correlation_data).decode()
        if properties.user_property:
            data["user_properties"] = properties.user_property
            trace = traceparent(message)
    return Event(type, time, client, message.topic, listener, data, message.payload, trace)


def _plain(value: Mapping[str, object]) -> dict[str, Any]:
    return {str(name): _json(one) for name, one in value.items()}


def _json(value: object) -> Any:
    """Return a value that both JSON and `marshal` can encode."""
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_json(one) for one in value]
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value)
    return str(value)
