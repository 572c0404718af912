"""All core settings, with defaults and descriptions. The configuration binds YAML to these classes.

Sizes are in bytes, times in seconds. `help` is the text for the reference. To add a setting, add a field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

Seconds = Annotated[float, "duration"]
"""A duration. The configuration accepts ``5s``, ``250ms``, ``2m``, ``1h``, ``7d`` or a number of seconds."""
Size = Annotated[int, "size"]
"""A number of bytes. The configuration accepts ``64KiB``, ``1MiB``, ``10kB`` or a number."""

ShareStrategy = Literal[
    "round_robin", "random", "sticky", "hash_client", "hash_topic", "least_inflight"
]
Verdict = Literal["deny", "allow"]


def setting(
    default: Any,
    help: str,
    *,
    minimum: float = 0,
    maximum: float | None = None,
    nonempty: bool = False,
    path: bool = False,
) -> Any:
    """Return a dataclass field with its default, bounds and description.

    `nonempty` rejects empty lists: use it if omitting the key has another meaning. `path` marks a file path, relative
    to the configuration file's folder.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "nonempty": nonempty,
        "path": path,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """``broker:`` what the broker as a whole accepts and offers."""

    max_packet_size: Size = setting(
        1048576,
        "largest packet accepted, in bytes, including its fixed header",
        minimum=256,
        maximum=268435460,
    )
    max_qos: int = setting(
        2, "highest QoS offered; a SUBSCRIBE that asks for more is granted this", maximum=2
    )
    retain_available: bool = setting(True, "whether retained messages are supported")
    wildcard_available: bool = setting(True, "whether filters may contain + and #")
    shared_available: bool = setting(True, "whether shared subscriptions are supported")
    subscription_identifiers_available: bool = setting(
        True, "whether subscription identifiers are supported"
    )
    max_connections: int = setting(100000, "connections open at once", minimum=1)
    max_sessions: int = setting(1000000, "sessions, online and offline", minimum=1)
    max_topic_levels: int = setting(200, "slashes in one topic or filter", minimum=1, maximum=65535)
    max_session_bytes: Size = setting(
        1 << 30,
        "bytes of client ids, user names, wills and filters of all sessions together",
        minimum=65536,
    )
    max_user_properties: int = setting(64, "user properties in one packet")
    max_filters: int = setting(1024, "filters in one SUBSCRIBE or UNSUBSCRIBE", minimum=1)
    max_keep_alive: int = setting(
        65535,
        "longest keep alive granted, in seconds; MQTT 5 clients that ask for more, or for none, are given this",
        maximum=65535,
    )
    server_keep_alive: int = setting(
        0,
        "keep alive imposed on all MQTT 5 clients, in seconds; 0 leaves it to the client",
        maximum=65535,
    )
    receive_maximum: int = setting(
        1024, "QoS 1 and 2 messages from one client in flight", minimum=1, maximum=65535
    )
    text: Literal["strict", "tolerant"] = setting(
        "strict", "strict: strings with control characters or non-characters are malformed (0x81)"
    )
    receive_maximum_policy: Literal["strict", "tolerant"] = setting(
        "strict",
        "if a client exceeds receive_maximum: strict disconnects it with 0x93, tolerant only counts",
    )
    topic_alias_maximum: int = setting(64, "topic aliases that a client may use", maximum=65535)
    outbound_topic_alias: int = setting(
        16,
        "topic aliases used for messages to a client that supports them",
        maximum=65535,
    )
    response_information: str = setting(
        "",
        "Response Information for clients that request it, a prefix for response topics; empty sends none",
    )
    server_reference: str = setting(
        "", "Server Reference sent to clients when the broker stops; empty sends none"
    )
    check_payload_format: bool = setting(
        False, "refuse payloads that are declared UTF-8 but are not (0x99)"
    )
    async_fan_out: bool = setting(
        False,
        "acknowledge a message when it is committed, not when it was delivered to all subscribers",
    )
    fan_out_batch: int = setting(1000, "subscribers of one slice of a fan-out", minimum=1)
    mqtt3_denied_publish: Literal["acknowledge", "disconnect"] = setting(
        "acknowledge", "how to answer a denied PUBLISH of an MQTT 3 client"
    )
    duplicate_client_id: Literal["takeover", "reject"] = setting(
        "takeover",
        "takeover: a new connection replaces the one with the same client id; reject: it is refused",
    )
    flapping_takeovers: int = setting(
        10,
        "takeovers of one client id within a minute before its connections are delayed",
        minimum=1,
    )
    flapping_delay: Seconds = setting(1.0, "delay of each CONNECT of such a client")
    shared_strategy: ShareStrategy = setting(
        "round_robin", "which member of a shared subscription receives a message"
    )
    shared_groups: Mapping[str, ShareStrategy] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"help": "strategy by share name"}
    )
    max_retained: int = setting(1000000, "retained messages stored")
    max_retained_bytes: Size = setting(
        1 << 30,
        "bytes of retained messages: topics, payloads, properties and publishers",
    )
    check_retain_source: bool = setting(
        True,
        "send a retained message only if its publisher may still publish it",
    )
    max_queue_bytes: Size = setting(1 << 30, "bytes of queued messages of all clients together")
    queue_memory: Size = setting(
        256 << 20,
        "bytes of queued messages of durable sessions that are kept in memory; the rest stays in the store",
    )
    max_write_buffer: Size = setting(
        1 << 20, "unsent bytes for one client above which its messages are queued", minimum=1024
    )
    max_held_inbound_bytes: Size = setting(
        262144,
        "bytes of a client's packets that may wait behind one that waits for a decision; then reading stops",
        minimum=1024,
    )
    hold_timeout: Seconds = setting(
        60.0, "how long reading may stay stopped before the client is disconnected"
    )
    on_revoke: Literal["disconnect", "silent"] = setting(
        "disconnect", "what happens to a client when a subscription is revoked"
    )
    publish_depth: int = setting(
        4, "how often in a row plugins may answer a message with a message", minimum=1
    )
    authz_cache: int = setting(1024, "cached decisions of authorize for one connection")
    authz_cache_total: int = setting(
        1000000, "cached decisions of authorize for all connections together"
    )
    shutdown_timeout: Seconds = setting(10.0, "how long the broker may take to stop")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """``session:`` limits of each session."""

    max_expiry: Seconds = setting(
        604800.0,
        "longest session expiry granted; also the expiry of MQTT 3 sessions that are not clean",
    )
    realm: Literal["vouched", "listener", "none"] = setting(
        "vouched",
        "what a session belongs to in addition to its user: the plugin or listener that authenticated the user, the "
        "client's listener, or nothing",
    )
    other_owner: Literal["refuse", "replace"] = setting(
        "refuse",
        "if a client id has a session of another user or realm: refuse the client, or end that session and start a "
        "new one",
    )
    max_inflight: int = setting(
        256,
        "QoS 1 and 2 messages to one client in flight",
        minimum=1,
        maximum=65535,
    )
    max_subscriptions: int = setting(10000, "subscriptions of one session", minimum=1)
    subscription_bytes: Size = setting(4194304, "bytes of the filters of one session")
    queue_messages: int = setting(10000, "messages queued for one client")
    queue_bytes: Size = setting(16777216, "bytes of messages queued for one client")
    queue_qos0: bool = setting(False, "whether QoS 0 messages are queued for offline clients")
    queue_page: int = setting(
        256, "queued messages that are read from the store at once", minimum=1
    )
    inflight_overflow: Literal["pending", "backpressure"] = setting(
        "pending", "if max_inflight is reached: queue, or delay the publisher's acknowledgement"
    )
    backpressure_timeout: Seconds = setting(
        5.0, "how long backpressure may delay an acknowledgement before messages are queued"
    )
    queue_drop: Literal["oldest", "newest", "disconnect"] = setting(
        "newest", "what to drop if the queue is full"
    )
    retry_interval: Seconds = setting(
        0.0, "when to resend unacknowledged messages to MQTT 3 clients; 0 never"
    )
    max_will_delay: Seconds = setting(604800.0, "longest will delay granted")


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """``auth:`` what happens if no plugin decided about a connection."""

    default: Verdict = setting("deny", "the decision if no plugin answered on_connect")


@dataclass(frozen=True, slots=True)
class AuthzSettings:
    """``authz:`` what happens if no plugin decided about an action."""

    default: Verdict = setting("deny", "the decision if no plugin answered authorize")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the core."""

    broker: BrokerSettings = BrokerSettings()
    session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    authz: AuthzSettings = AuthzSettings()
