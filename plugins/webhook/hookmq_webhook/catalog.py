"""Every event: its name, which hook tells it, its fields, and how it is made from what the hook is given.

The table is the one place: the JSON Schemas and docs/reference/webhook-events.md are made from it
(`hookmq_webhook.reference`), and the functions below fill what it lists. The client id, the topic and the payload stand
in the event itself; `hookmq_webhook.envelope` puts them among the fields.
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
    """A member of an event's data. `always`: it is never left out."""

    name: str
    schema: Mapping[str, Any]
    help: str
    always: bool = True


@dataclass(frozen=True)
class Kind:
    """A kind of event. `client` and `topic` say whether it is about one, `payload` whether it brings a message's."""

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
    Field("client_id", _TEXT, "the client's id"),
    Field("username", _TEXT, "the user name of its CONNECT", False),
    Field("identity", _TEXT, "who it was found to be", False),
    Field("listener", _NAME, "the listener that it came by"),
)
_CLIENT: Final = (
    *_WHO,
    Field("host", _TEXT, "its address"),
    Field("port", _COUNT, "its port"),
    Field("transport", _NAME, "tcp, tls, ws, wss, unix or memory"),
    Field("version", {"type": "integer", "enum": [3, 4, 5]}, "of MQTT: 3 is 3.1, 4 is 3.1.1"),
)
_REFUSED: Final = (
    Field("code", _CODE, "the reason code of MQTT 5.0"),
    Field("code_name", _NAME, "its name"),
)
_SUBSCRIPTION: Final = (
    Field("filter", _NAME, "what the client wrote, with $share/NAME/"),
    Field("topic", _NAME, "the topic filter that is matched"),
    Field("share", _NAME, "the name of the group that shares it", False),
    Field("qos", _QOS, "the QoS granted"),
    Field("no_local", _BOOL, "whether the client's own messages are kept from it"),
    Field("retain_as_published", _BOOL, "whether RETAIN is passed on"),
    Field(
        "retain_handling", {"type": "integer", "enum": [0, 1, 2]}, "when retained messages are sent"
    ),
    Field("identifier", {"type": "integer", "minimum": 1}, "the subscription identifier", False),
)
_MESSAGE: Final = (
    Field("topic", _NAME, "the message's topic"),
    Field("qos", _QOS, "its QoS"),
    Field("retain", _BOOL, "whether it was published with RETAIN"),
    Field("origin", _NAME, "client, will, or plugin:ID"),
    Field("received_at", _TIME, "when it came in"),
    Field("expires_at", _TIME, "when it expires", False),
    Field("content_type", _TEXT, "the content type that the publisher gave", False),
    Field(
        "payload_format_indicator",
        {"type": "integer", "enum": [0, 1]},
        "1 if the publisher says that it is UTF-8",
        False,
    ),
    Field("response_topic", _TEXT, "where an answer is to go", False),
    Field("correlation_data", _BASE64, "what the answer is to bring along", False),
    Field("user_properties", _PAIRS, "[name, value] in the publisher's order", False),
)
_PUBLISHER: Final = (
    Field("client_id", _TEXT, "who published it; left out for the broker and plugins", False),
    Field("username", _TEXT, "the publisher's user name, while it is connected", False),
    Field("identity", _TEXT, "who it was found to be, while it is connected", False),
    Field("listener", _NAME, "the listener it came by, while it is connected", False),
)
_RECEIVER: Final = (
    *_WHO,
    Field("sender", _TEXT, "who published it; left out for the broker and plugins", False),
)
_DELIVERED: Final = (
    *_RECEIVER,
    *(
        one._replace(help="that of the delivery; publish_qos is the publisher's")
        if one.name == "qos"
        else one
        for one in _MESSAGE
    ),
    Field("publish_qos", _QOS, "the QoS that it was published with"),
)


def _kinds() -> tuple[Kind, ...]:
    """The table."""
    session = "The session of a client id "
    return (
        Kind(
            "client.connected",
            "on_session",
            "A client was let in.",
            (
                *_CLIENT,
                Field("clean_start", _BOOL, "whether it asked for a new session"),
                Field("keep_alive", _COUNT, "its keep alive in seconds"),
                Field("session_present", _BOOL, "whether it found its session again"),
            ),
            client=True,
        ),
        Kind(
            "client.disconnected",
            "on_disconnect",
            "The connection of a client that was let in ended.",
            (
                *_CLIENT,
                *_REFUSED,
                Field("by", _one_of(*EndedBy), "who ended it"),
                Field("will", _BOOL, "whether its will is published, now or later"),
                Field("error", _TEXT, "the error in words", False),
                Field("connected_seconds", _SECONDS, "how long it was connected"),
            ),
            client=True,
        ),
        Kind(
            "client.auth_failed",
            "on_auth_failed",
            "A client was refused at CONNECT or when it authenticated again.",
            (
                *(field for field in _CLIENT if field.name not in ("identity", "version")),
                Field(
                    "version",
                    {"type": "integer", "enum": [0, 3, 4, 5]},
                    "of MQTT: 3 is 3.1, 4 is 3.1.1, 0 is unknown: no CONNECT was read",
                ),
                *_REFUSED,
                Field("reason", _TEXT, "why, in words", False),
            ),
            client=True,
        ),
        Kind(
            "client.denied",
            "on_denied",
            "A client may not do what it tried.",
            (
                *_CLIENT,
                *_REFUSED,
                Field("action", _one_of(*Action), "what it tried"),
                Field("topic", _TEXT, "the topic, or the topic filter of a subscription"),
                Field("rule", _NAME, "the plugin, the plugin's rule or the setting that says so"),
            ),
            client=True,
            topic=True,
        ),
        Kind("session.created", "on_session", f"{session}began.", _CLIENT, client=True),
        Kind("session.resumed", "on_session", f"{session}goes on.", _CLIENT, client=True),
        Kind(
            "session.taken_over",
            "on_session",
            f"{session}goes to another connection; the fields are of the older one.",
            _CLIENT,
            client=True,
        ),
        Kind(
            "session.expired",
            "on_session",
            f"{session}ended, since the client stayed away too long.",
            _CLIENT,
            client=True,
        ),
        Kind(
            "session.ended",
            "on_session",
            f"{session}ended with the connection, or by a clean start.",
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
            "A subscription ended: by UNSUBSCRIBE, since it is allowed no more, or with its session.",
            (*_WHO, *_SUBSCRIPTION),
            client=True,
            topic=True,
        ),
        Kind(
            "message.published",
            "provide_journal, on_published",
            "A message was accepted, wills and those of plugins too.",
            (*_PUBLISHER, *_MESSAGE),
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "message.delivered",
            "on_delivered",
            "A message reached a subscriber: written to it (QoS 0) or acknowledged by it (QoS 1, 2).",
            _DELIVERED,
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "message.acked",
            "on_delivered",
            "A subscriber acknowledged a message: those of message.delivered at QoS 1 and 2.",
            _DELIVERED,
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "message.dropped",
            "on_dropped",
            "A message went no further; client_id is the publisher's (in) or the receiver's (out).",
            (
                *(field._replace(always=False) for field in _RECEIVER),
                Field("reason", _one_of(*DropReason), "why"),
                Field("direction", _one_of("in", "out"), "into the broker or out of it"),
                Field("detail", _TEXT, "the plugin, the limit or the group that it was for", False),
                *_MESSAGE,
            ),
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "message.retained",
            "on_retained",
            "A message is retained from now on.",
            (_PUBLISHER[0], *_MESSAGE),
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "message.cleared",
            "on_retained",
            "A topic has no retained message any more.",
            (_MESSAGE[0],),
            topic=True,
        ),
        Kind(
            "will.published",
            "on_published",
            "A client's will was published; message.published tells it as well.",
            (_PUBLISHER[0]._replace(always=True), *_MESSAGE),
            client=True,
            topic=True,
            payload=True,
        ),
        Kind(
            "broker.started",
            "on_ready",
            "All listeners are open.",
            (Field("version", _NAME, "HookMQ's"),),
        ),
        Kind(
            "broker.stopping",
            "on_shutdown",
            "The broker stops, or this plugin is taken out of the configuration.",
            (
                Field("version", _NAME, "HookMQ's"),
                Field("seconds", _SECONDS, "how long that may take"),
            ),
        ),
        Kind(
            "broker.reloaded",
            "on_reload",
            "The configuration was read again.",
            (
                Field(
                    "changed",
                    {"type": "array", "items": _NAME},
                    "settings of broker, session, auth and authz that are others now",
                ),
            ),
        ),
        Kind(
            "ratelimit.limited",
            "on_event",
            "A client was over a rate limit; told once per limit and period.",
            (
                *(field._replace(always=False) for field in _WHO),
                Field("plugin", _NAME, "the id of the plugin"),
                Field("limit", _NAME, "the limit"),
                Field("outcome", _NAME, "what came of it: throttled, refused, dropped, ..."),
                Field("per", _NAME, "what it is counted per"),
                Field("key", _TEXT, "whose count was full"),
            ),
            client=True,
        ),
        Kind(
            "ratelimit.banned",
            "on_event",
            "A client, user or address is kept out for a while.",
            (
                *(field._replace(always=False) for field in _WHO),
                Field("plugin", _NAME, "the id of the plugin"),
                Field("kind", _NAME, "client, user or ip"),
                Field("name", _TEXT, "which"),
                Field("seconds", _SECONDS, "for how long"),
                Field("why", _NAME, "flapping, or the limit that was broken too often"),
            ),
            client=True,
        ),
    )


CATALOG: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _kinds()})
"""Every kind of event by its name. What other plugins tell by `BrokerHandle.emit` has their own names and fields."""

OTHER: Final = Kind(
    "PLUGIN.EVENT",
    "on_event",
    "What any other plugin tells, under the plugin's own name for it.",
    (
        *(field._replace(always=False) for field in _WHO),
        Field("plugin", _NAME, "the id of the plugin"),
    ),
    client=True,
)
"""The kind of those."""

PAYLOAD: Final = (
    Field("payload_size", _COUNT, "bytes of the payload"),
    Field(
        "payload_format",
        _one_of("json", "text", "base64", "omitted"),
        "how the payload is given: json and text in payload, base64 in payload_base64",
    ),
    Field("payload", {}, "the payload, as a JSON value or as text", False),
    Field("payload_base64", _BASE64, "the payload", False),
    Field(
        "left_out",
        {"type": "array", "items": _one_of("payload", "user_properties")},
        "what is missing since the event would be larger than max_event",
        False,
    ),
)
"""What `hookmq_webhook.envelope` adds to the fields of kinds with a payload."""


def hooks_of(types: frozenset[str]) -> frozenset[str]:
    """The hooks that tell those; `on_event` where a type is none of the catalog's."""
    found = {"on_event"} if types - CATALOG.keys() else set()
    for name in types & CATALOG.keys():
        found.update(CATALOG[name].hook.split(", "))
    return frozenset(found)


def field_names(kind: Kind) -> frozenset[str]:
    """The members that data of this kind may have."""
    extra = PAYLOAD if kind.payload else ()
    return frozenset(field.name for field in (*kind.fields, *extra))


# What the hooks are given, as events -----------------------------------------------------------------------------------


def session(time: float, client: ClientInfo, event: SessionEvent) -> tuple[Event, ...]:
    """`on_session`. A session that was created or resumed has a client that connected, which is told first."""
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
    """`on_disconnect`."""
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
    """`on_auth_failed`."""
    data = {**_client(client), **_code(code)}
    data.pop("identity", None)  # nobody knows who it is
    if reason:
        data["reason"] = reason
    return Event("client.auth_failed", time, client.client_id, None, client.listener, data)


def denied(
    time: float, client: ClientInfo, action: Action, topic: str, code: ReasonCode, rule: str
) -> Event:
    """`on_denied`."""
    data = {**_client(client), **_code(code), "action": str(action), "rule": rule}
    return Event("client.denied", time, client.client_id, topic, client.listener, data)


def subscribed(time: float, client: ClientInfo, subscription: Subscription) -> Event:
    """`on_subscribed`."""
    return _subscription("subscription.created", time, client, subscription)


def unsubscribed(time: float, client: ClientInfo, subscription: Subscription) -> Event:
    """`on_unsubscribed`."""
    return _subscription("subscription.removed", time, client, subscription)


def published(message: Message, client: ClientInfo | None) -> Event:
    """`on_published`, and what a journal is given. `client` is the publisher, where it is known."""
    return _message("message.published", message.received_at, message, client)


def will_published(time: float, message: Message) -> Event:
    """`on_published`, of a message whose origin is ``will``."""
    return _message("will.published", time, message, None)


def delivered(time: float, client: ClientInfo, message: Message, qos: int) -> tuple[Event, ...]:
    """`on_delivered`: one event for QoS 0, two for QoS 1 and 2."""
    told = _received("message.delivered", time, client, message)
    told = told._replace(data={**told.data, "qos": qos, "publish_qos": message.qos})
    return (told, told._replace(type="message.acked")) if qos else (told,)


def dropped(time: float, client: ClientInfo | None, message: Message, why: Dropped) -> Event:
    """`on_dropped`."""
    told = _received("message.dropped", time, client, message)
    data = {**told.data, "reason": str(why.reason), "direction": str(why.direction)}
    if why.detail:
        data["detail"] = why.detail
    return told._replace(client=why.client_id, data=data)


def retained(time: float, topic: str, message: Message | None) -> Event:
    """`on_retained`."""
    if message is None:
        return Event("message.cleared", time, None, topic)
    return _message("message.retained", time, message, None)


def started(time: float, version: str) -> Event:
    """`on_ready`."""
    return Event("broker.started", time, data={"version": version})


def stopping(time: float, version: str, seconds: float) -> Event:
    """`on_shutdown`."""
    return Event("broker.stopping", time, data={"version": version, "seconds": float(seconds)})


def reloaded(time: float, old: Settings, new: Settings) -> Event:
    """`on_reload`."""
    return Event("broker.reloaded", time, data={"changed": changes(old, new)})


def told(
    time: float, client: ClientInfo | None, event: str, values: Mapping[str, object], plugin: str
) -> Event:
    """`on_event`."""
    data = {**_plain(values), "plugin": plugin}
    if client is None:
        return Event(event, time, data=data)
    return Event(event, time, client.client_id, None, client.listener, {**_names(client), **data})


def changes(old: Any, new: Any, place: str = "") -> list[str]:
    """The dotted names of settings that differ."""
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
    """The ``traceparent`` among the user properties, if it is one (W3C Trace Context)."""
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
    """A value as JSON and `marshal` have it."""
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
