"""Convert the broker's objects to JSON values. Payloads become text or base64, and secrets are masked."""

from base64 import b64encode
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from hookmq.plugin import (
    ClientInfo,
    HookSnapshot,
    InflightMessage,
    ListenerSnapshot,
    Message,
    Page,
    PluginSnapshot,
    Properties,
    QueuedMessage,
    SessionSnapshot,
    SharedGroup,
    SubscriptionSnapshot,
)

from hookmq_admin.tokens import Token

PREVIEW: Final = 512
"""Maximum number of payload bytes that a listing shows."""
MAX_PAIRS: Final = 32
"""Maximum number of user properties to show for one message."""
MASK: Final = "***"
SECRET: Final = ("password", "passwd", "secret", "token", "key", "credential", "authorization")
"""Claims whose names contain one of these words are masked."""
Shown = dict[str, Any]


def payload(data: bytes, most: int = PREVIEW) -> Shown:
    """Return at most `most` bytes of a payload, as text if it is UTF-8."""
    part = data[:most]
    cut = len(data) > most
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not (cut and error.start > len(part) - 4 and error.reason == "unexpected end of data"):
            return {"base64": b64encode(part).decode(), "truncated": cut}
        text = part[: error.start].decode()
    return {"text": text, "truncated": cut}


def message(found: Message, *, payloads: bool, most: int = PREVIEW) -> Shown:
    """Return a message. Without `payloads`, its payload and all properties are left out."""
    shown: Shown = {
        "topic": found.topic,
        "qos": found.qos,
        "retain": found.retain,
        "bytes": len(found.payload),
        "sender": found.sender,
        "origin": found.origin,
        "received_at": found.received_at,
        "expires_at": found.expires_at,
    }
    if payloads:
        shown["payload"] = payload(found.payload, most)
        shown["properties"] = properties(found.properties, most)
    return shown


def properties(found: Properties, most: int) -> Shown:
    """Return the properties that are set. Strings longer than `most` characters are truncated."""
    shown: Shown = {}
    for name in ("content_type", "response_topic"):
        text = getattr(found, name)
        if text is not None:
            shown[name] = text[:most]
    for name in ("payload_format_indicator", "message_expiry_interval"):
        if getattr(found, name) is not None:
            shown[name] = getattr(found, name)
    if found.correlation_data is not None:
        shown["correlation_data"] = b64encode(found.correlation_data[:most]).decode()
    if found.user_property:
        pairs = found.user_property[:MAX_PAIRS]
        shown["user_properties"] = [[name[:most], value[:most]] for name, value in pairs]
    return shown


def session(found: SessionSnapshot) -> Shown:
    """Return a session."""
    return {
        "client_id": found.client_id,
        "username": found.username,
        "identity": found.identity,
        "listener": found.listener,
        "address": found.peer.host,
        "port": found.peer.port,
        "transport": found.peer.transport,
        "version": found.version,
        "connected": found.connected,
        "connected_at": found.connected_at,
        "ended_at": found.ended_at,
        "clean_start": found.clean_start,
        "keep_alive": found.keep_alive,
        "expiry": found.expiry if isfinite(found.expiry) else None,
        "durable": found.durable,
        "subscriptions": found.subscriptions,
        "inflight": found.inflight,
        "queued": found.queued,
        "queued_bytes": found.queued_bytes,
        "will": found.will,
        "receive_maximum": found.receive_maximum,
    }


def client(found: SessionSnapshot, info: ClientInfo | None) -> Shown:
    """Return a session with the details of its connected client."""
    shown = session(found)
    shown["claims"] = {} if info is None else masked(info.claims)
    shown["credential_expires_at"] = None if info is None else info.expires_at
    shown["vouched_by"] = None if info is None else info.vouched_by
    certificate = found.peer.certificate
    shown["certificate"] = None if certificate is None else certificate.subject
    return shown


def masked(value: Any) -> Any:
    """Return a JSON value with secrets masked. Secrets are recognized by name."""
    if isinstance(value, Mapping):
        return {
            str(name): MASK if any(word in str(name).lower() for word in SECRET) else masked(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return value


def subscription(found: SubscriptionSnapshot) -> Shown:
    """Return a subscription."""
    one = found.subscription
    return {
        "client_id": found.client_id,
        "filter": one.filter,
        "topic_filter": one.topic_filter,
        "share": one.share,
        "qos": one.qos,
        "no_local": one.no_local,
        "retain_as_published": one.retain_as_published,
        "retain_handling": one.retain_handling,
        "identifier": one.identifier,
    }


def queued(found: QueuedMessage, payloads: bool) -> Shown:
    """Return a queued message as the client will receive it."""
    shown = message(found.message, payloads=payloads)
    return shown | {"qos": found.qos, "retain": found.retain, "filter": found.filter}


def inflight(found: InflightMessage, payloads: bool) -> Shown:
    """Return a message in flight."""
    shown: Shown = {"packet_id": found.packet_id, "qos": found.qos, "released": found.released}
    shown["filter"] = found.filter
    shown["message"] = None if found.message is None else message(found.message, payloads=payloads)
    return shown


def group(found: SharedGroup) -> Shown:
    """Return a shared subscription."""
    return {
        "filter": f"$share/{found.share}/{found.topic_filter}",
        "share": found.share,
        "topic_filter": found.topic_filter,
        "strategy": found.strategy,
        "members": found.members,
        "online": found.online,
        "queued": found.queued,
        "queued_bytes": found.queued_bytes,
    }


def listener(found: ListenerSnapshot) -> Shown:
    """Return a listener."""
    return {
        "name": found.name,
        "type": found.type,
        "address": found.address,
        "connections": found.connections,
        "max_connections": found.max_connections,
    }


def plugin(found: PluginSnapshot) -> Shown:
    """Return a plugin with its hooks."""
    return {
        "id": found.id,
        "use": found.use,
        "version": found.version,
        "listeners": None if found.listeners is None else list(found.listeners),
        "filters": None if found.filters is None else list(found.filters),
        "disabled": found.disabled,
        "circuit_open": found.circuit_open,
        "hooks": [hook(one) for one in found.hooks],
    }


def hook(found: HookSnapshot) -> Shown:
    """Return a hook's counters."""
    return {
        "name": found.name,
        "outcomes": dict(found.outcomes),
        "timed": found.timed,
        "seconds": found.seconds,
        "queue": found.queue,
        "dropped": found.dropped,
        "last_error": found.last_error,
    }


def token(found: Token) -> Shown:
    """Return a token without its hash."""
    return {
        "id": found.id,
        "name": found.name,
        "role": found.role,
        "identity": found.identity,
        "created_at": found.created_at,
        "created_by": found.created_by,
        "expires_at": found.expires_at,
    }


def page(found: Page[Any], items: list[Shown]) -> Shown:
    """Return a page as a JSON value. `items` are the page's items, already converted."""
    return {"items": items, "cursor": found.cursor}
