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
    """Return a dataclass field with the given default, bounds and description.

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
    """``broker:`` limits and features of the whole broker."""

    max_packet_size: Size = setting(
        1048576,
        "maximum size of a packet from a client, in bytes, including its fixed header",
        minimum=256,
        maximum=268435460,
    )
    max_qos: int = setting(
        2, "highest QoS offered; a SUBSCRIBE for a higher QoS is granted this one", maximum=2
    )
    retain_available: bool = setting(True, "whether retained messages are supported")
    wildcard_available: bool = setting(True, "whether filters may contain + and #")
    shared_available: bool = setting(True, "whether shared subscriptions are supported")
    subscription_identifiers_available: bool = setting(
        True, "whether subscription identifiers are supported"
    )
    max_connections: int = setting(100000, "maximum number of open connections", minimum=1)
    max_sessions: int = setting(
        1000000, "maximum number of sessions, online and offline", minimum=1
    )
    max_topic_levels: int = setting(
        200, "maximum number of slashes in a topic or filter", minimum=1, maximum=65535
    )
    max_session_bytes: Size = setting(
        1 << 30,
        "maximum bytes of client ids, user names, wills and filters in all sessions together",
        minimum=65536,
    )
    max_user_properties: int = setting(64, "maximum number of user properties in a packet")
    max_filters: int = setting(
        1024, "maximum number of filters in a SUBSCRIBE or UNSUBSCRIBE", minimum=1
    )
    max_keep_alive: int = setting(
        65535,
        "longest keep alive in seconds; MQTT 5 clients that ask for a longer one, or for none, get this value",
        maximum=65535,
    )
    server_keep_alive: int = setting(
        0,
        "keep alive of all MQTT 5 clients, in seconds; 0 lets each client choose",
        maximum=65535,
    )
    receive_maximum: int = setting(
        1024,
        "maximum number of QoS 1 and 2 messages in flight from one client",
        minimum=1,
        maximum=65535,
    )
    text: Literal["strict", "tolerant"] = setting(
        "strict", "strict: a string with control characters or non-characters is malformed (0x81)"
    )
    receive_maximum_policy: Literal["strict", "tolerant"] = setting(
        "strict",
        "what happens if a client exceeds receive_maximum; strict: DISCONNECT 0x93; tolerant: the excess is only counted",
    )
    topic_alias_maximum: int = setting(
        64, "number of topic aliases that a client may use", maximum=65535
    )
    outbound_topic_alias: int = setting(
        16,
        "number of topic aliases that the broker uses for a client that supports them",
        maximum=65535,
    )
    response_information: str = setting(
        "",
        "Response Information for clients that request it: a prefix for response topics; empty: none is sent",
    )
    server_reference: str = setting(
        "", "Server Reference sent to clients when the broker stops; empty: none is sent"
    )
    check_payload_format: bool = setting(
        False,
        "whether to refuse payloads that are declared as UTF-8 but are not valid UTF-8 (0x99)",
    )
    async_fan_out: bool = setting(
        False,
        "whether to acknowledge a message once it is committed, without waiting for its delivery to all subscribers",
    )
    fan_out_batch: int = setting(
        1000, "number of subscribers that one slice of a fan-out serves", minimum=1
    )
    mqtt3_denied_publish: Literal["acknowledge", "disconnect"] = setting(
        "acknowledge", "how to answer a denied PUBLISH of an MQTT 3 client"
    )
    duplicate_client_id: Literal["takeover", "reject"] = setting(
        "takeover",
        "takeover: a new connection replaces the old one with the same client id; reject: the new connection is refused",
    )
    flapping_takeovers: int = setting(
        10,
        "number of takeovers of a client id within a minute after which its connections are delayed",
        minimum=1,
    )
    flapping_delay: Seconds = setting(
        1.0, "delay of each CONNECT with a client id that exceeds flapping_takeovers"
    )
    shared_strategy: ShareStrategy = setting(
        "round_robin", "which member of a shared subscription receives a message"
    )
    shared_groups: Mapping[str, ShareStrategy] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"help": "strategy by share name"}
    )
    max_retained: int = setting(1000000, "maximum number of retained messages")
    max_retained_bytes: Size = setting(
        1 << 30,
        "maximum bytes of all retained messages: topics, payloads, properties and publishers",
    )
    check_retain_source: bool = setting(
        True,
        "whether to send a retained message only if its publisher may still publish it",
    )
    max_queue_bytes: Size = setting(
        1 << 30, "maximum bytes of queued messages of all clients together"
    )
    queue_memory: Size = setting(
        256 << 20,
        "maximum bytes of durable sessions' queued messages in memory; other queued messages are only in the store",
    )
    max_write_buffer: Size = setting(
        1 << 20, "unsent bytes for a client above which its messages are queued", minimum=1024
    )
    max_held_inbound_bytes: Size = setting(
        262144,
        "bytes of a client's packets that may wait for a decision before the broker stops reading from it",
        minimum=1024,
    )
    hold_timeout: Seconds = setting(
        60.0, "how long the broker may stop reading from a client before it disconnects the client"
    )
    on_revoke: Literal["disconnect", "silent"] = setting(
        "disconnect", "what happens to a client when a subscription is revoked"
    )
    plugin_state_bytes: Size = setting(
        64 << 20,
        "bytes of the state of one plugin: keys, values and timers",
        maximum=512 << 20,
    )
    plugin_state_keys: int = setting(100000, "keys and timers in the state of one plugin")
    publish_depth: int = setting(
        4,
        "how many times in a row plugins may respond to a message by publishing another one",
        minimum=1,
    )
    authz_cache: int = setting(
        1024, "maximum number of cached authorize verdicts for one connection"
    )
    authz_cache_total: int = setting(
        1000000, "maximum number of cached authorize verdicts for all connections together"
    )
    shutdown_timeout: Seconds = setting(10.0, "maximum time for the broker to stop")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """``session:`` limits of each session."""

    max_expiry: Seconds = setting(
        604800.0,
        "longest session expiry granted, and the expiry of MQTT 3 sessions that are not clean",
    )
    realm: Literal["vouched", "listener", "none"] = setting(
        "vouched",
        "who owns a session; vouched: the user, with the plugin or listener that authenticated the user; listener: the "
        "user, with the client's listener; none: the user alone",
    )
    other_owner: Literal["refuse", "replace"] = setting(
        "refuse",
        "what happens if a client id has a session of another user or realm; refuse: the client is refused; replace: "
        "the session ends and the client gets a new one",
    )
    max_inflight: int = setting(
        256,
        "maximum number of QoS 1 and 2 messages in flight to one client",
        minimum=1,
        maximum=65535,
    )
    max_subscriptions: int = setting(
        10000, "maximum number of subscriptions in a session", minimum=1
    )
    subscription_bytes: Size = setting(4194304, "maximum bytes of all filters in a session")
    queue_messages: int = setting(10000, "maximum number of messages queued for one client")
    queue_bytes: Size = setting(16777216, "maximum bytes of messages queued for one client")
    queue_qos0: bool = setting(False, "whether QoS 0 messages are queued for offline clients")
    queue_page: int = setting(
        256, "number of queued messages read from the store at a time", minimum=1
    )
    inflight_overflow: Literal["pending", "backpressure"] = setting(
        "pending",
        "what happens if max_inflight is reached; pending: messages are queued; backpressure: the publisher's "
        "acknowledgement is delayed",
    )
    backpressure_timeout: Seconds = setting(
        5.0, "longest delay of an acknowledgement by backpressure; after that, messages are queued"
    )
    queue_drop: Literal["oldest", "newest", "disconnect"] = setting(
        "newest", "what to drop if the queue is full"
    )
    retry_interval: Seconds = setting(
        0.0, "time after which unacknowledged messages are sent again to MQTT 3 clients; 0: never"
    )
    max_will_delay: Seconds = setting(604800.0, "longest will delay granted")


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """``auth:`` what happens if no plugin accepts or refuses a connection."""

    default: Verdict = setting("deny", "the decision if no plugin decides in on_connect")


@dataclass(frozen=True, slots=True)
class AuthzSettings:
    """``authz:`` what happens if no plugin allows or denies an action."""

    default: Verdict = setting("deny", "the decision if no plugin decides in authorize")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the core."""

    broker: BrokerSettings = BrokerSettings()
    session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    authz: AuthzSettings = AuthzSettings()
