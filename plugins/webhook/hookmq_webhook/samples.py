"""Create a sample event of each type, for the manual and for testing receivers."""

from collections.abc import Callable, Mapping
from typing import Final

from hookmq.plugin import (
    Action,
    BrokerSettings,
    ClientInfo,
    Direction,
    DisconnectReason,
    Dropped,
    DropReason,
    EndedBy,
    Message,
    Peer,
    Properties,
    ReasonCode,
    Scope,
    SessionEvent,
    Settings,
    Subscription,
)

from hookmq_webhook import hook_events
from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.events import Event

TIME: Final = 1_767_225_600.0
"""Default time of sample events: 2026-01-01, in seconds since 1970."""


def sample(name: str, time: float = TIME) -> Event:
    """Return a sample event of the type `name`. Raises KeyError for an unknown type."""
    events = _SAMPLES[name](time)
    return next(event for event in events if event.type == name)


def _client(time: float) -> ClientInfo:
    return ClientInfo(
        "pump-7", 5, "ann", Peer("192.0.2.7", 49152), Scope("tcp"), False, 60, time - 3600, "ann"
    )


def _message(time: float, topic: str = "plant/pump-7/state", origin: str = "client") -> Message:
    properties = Properties(
        payload_format_indicator=1,
        content_type="application/json",
        response_topic="plant/answers",
        correlation_data=b"\x01\x02",
        user_property=(
            ("unit", "bar"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ),
    )
    payload = b'{"pressure": 4.2}'
    return Message(topic, payload, 1, True, properties, "pump-7", origin, time, time + 300)


def _subscription() -> Subscription:
    return Subscription("$share/g/plant/+/state", "plant/+/state", 1, identifier=7, share="g")


def _retained(time: float) -> tuple[Event, ...]:
    message = _message(time)
    return (
        hook_events.retained(time, message.topic, message),
        hook_events.retained(time, message.topic, None),
    )


def _dropped(time: float) -> tuple[Event, ...]:
    why = Dropped(DropReason.QUEUE_FULL, Direction.OUT, "pump-7", "newest")
    return (hook_events.dropped(time, _client(time), _message(time), why),)


def _disconnected(time: float) -> tuple[Event, ...]:
    reason = DisconnectReason(
        ReasonCode.KEEP_ALIVE_TIMEOUT, EndedBy.SERVER, True, "no packet for 90 s"
    )
    return (hook_events.disconnected(time, _client(time), reason),)


def _denied(time: float) -> tuple[Event, ...]:
    code = ReasonCode.NOT_AUTHORIZED
    return (
        hook_events.denied(
            time, _client(time), Action.PUBLISH, "plant/set", code, "acl: acl.yaml:12"
        ),
    )


def _auth_failed(time: float) -> tuple[Event, ...]:
    code = ReasonCode.BAD_USER_NAME_OR_PASSWORD
    return (hook_events.auth_failed(time, _client(time), code, "wrong password"),)


def _reloaded(time: float) -> tuple[Event, ...]:
    return (hook_events.reloaded(time, Settings(), Settings(broker=BrokerSettings(max_qos=1))),)


def _limited(time: float) -> tuple[Event, ...]:
    fields = {"limit": "publishes: 10/s", "outcome": "throttled", "per": "client", "key": "pump-7"}
    return (hook_events.told(time, _client(time), "ratelimit.limited", fields, "ratelimit"),)


def _banned(time: float) -> tuple[Event, ...]:
    fields = {"kind": "ip", "name": "192.0.2.7", "seconds": 60.0, "why": "auth_failures"}
    return (hook_events.told(time, _client(time), "ratelimit.banned", fields, "ratelimit"),)


def _session(event: SessionEvent) -> Callable[[float], tuple[Event, ...]]:
    return lambda time: hook_events.session(time, _client(time), event)


def _delivered(time: float) -> tuple[Event, ...]:
    return hook_events.delivered(time, _client(time), _message(time), 1)


_SAMPLES: Final[Mapping[str, Callable[[float], tuple[Event, ...]]]] = {
    "client.connected": _session(SessionEvent.CREATED),
    "client.disconnected": _disconnected,
    "client.auth_failed": _auth_failed,
    "client.denied": _denied,
    "session.created": _session(SessionEvent.CREATED),
    "session.resumed": _session(SessionEvent.RESUMED),
    "session.taken_over": _session(SessionEvent.TAKEN_OVER),
    "session.expired": _session(SessionEvent.EXPIRED),
    "session.ended": _session(SessionEvent.ENDED),
    "subscription.created": lambda time: (
        hook_events.subscribed(time, _client(time), _subscription()),
    ),
    "subscription.removed": lambda time: (
        hook_events.unsubscribed(time, _client(time), _subscription()),
    ),
    "message.published": lambda time: (hook_events.published(_message(time), _client(time)),),
    "message.delivered": _delivered,
    "message.acked": _delivered,
    "message.dropped": _dropped,
    "message.retained": _retained,
    "message.cleared": _retained,
    "will.published": lambda time: (
        hook_events.will_published(time, _message(time, origin="will")),
    ),
    "broker.started": lambda time: (hook_events.started(time, "0.1.0"),),
    "broker.stopping": lambda time: (hook_events.stopping(time, "0.1.0", 10.0),),
    "broker.reloaded": _reloaded,
    "ratelimit.limited": _limited,
    "ratelimit.banned": _banned,
}

assert _SAMPLES.keys() == CATALOG.keys()
