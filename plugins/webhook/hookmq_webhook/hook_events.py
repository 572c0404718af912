"""Create events from the arguments of hooks. `hookmq_webhook.catalog` describes their types and fields."""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from hookmq.plugin import (
    Action,
    ClientInfo,
    DisconnectReason,
    Dropped,
    Message,
    ReasonCode,
    SessionEvent,
    Settings,
    Subscription,
)

from hookmq_webhook.events import Event


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
