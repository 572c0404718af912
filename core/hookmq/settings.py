"""Every setting of the core, with its default and its meaning. The configuration binds YAML to these.

Sizes are bytes, times seconds. The `help` of a field is the manual's text; a new field is a new key by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

Seconds = Annotated[float, "duration"]
"""A time span; configuration accepts ``5s``, ``250ms``, ``2m``, ``1h``, ``7d`` or a plain number of seconds."""
Size = Annotated[int, "size"]
"""A number of bytes; configuration accepts ``64KiB``, ``1MiB``, ``10kB`` or a plain number."""

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
    """Return a field with its default, its bounds and its line in the manual. `nonempty` refuses a list without entries:
    for lists that narrow or check something, where leaving the key out means something else than an empty list.
    `path` makes a text the path of a file, relative to the folder of the configuration's file."""
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
        1048576, "largest packet accepted, header included", minimum=256, maximum=268435460
    )
    max_qos: int = setting(2, "highest QoS offered; SUBSCRIBE for more is granted this", maximum=2)
    retain_available: bool = setting(True, "whether retained messages are kept")
    wildcard_available: bool = setting(True, "whether filters may hold + and #")
    shared_available: bool = setting(True, "whether $share filters are accepted")
    subscription_identifiers_available: bool = setting(
        True, "whether subscriptions may carry an identifier"
    )
    max_connections: int = setting(100000, "clients connected at once", minimum=1)
    max_sessions: int = setting(1000000, "sessions held, online and offline", minimum=1)
    max_topic_levels: int = setting(200, "slashes in a topic or filter", minimum=1, maximum=65535)
    max_session_bytes: Size = setting(
        1 << 30,
        "bytes of client ids, user names, wills and topic filters held for all sessions together",
        minimum=65536,
    )
    max_user_properties: int = setting(64, "user properties in one packet")
    max_filters: int = setting(1024, "filters in one SUBSCRIBE or UNSUBSCRIBE", minimum=1)
    max_keep_alive: int = setting(
        65535,
        "longest keep alive granted, seconds; longer (or none) becomes this in MQTT 5",
        maximum=65535,
    )
    server_keep_alive: int = setting(
        0,
        "keep alive imposed on every MQTT 5 client, seconds; 0 leaves it to the client",
        maximum=65535,
    )
    receive_maximum: int = setting(
        1024, "QoS 1 and 2 publishes a client may have unfinished", minimum=1, maximum=65535
    )
    text: Literal["strict", "tolerant"] = setting(
        "strict", "strict: control characters and non-characters in strings are malformed (0x81)"
    )
    receive_maximum_policy: Literal["strict", "tolerant"] = setting(
        "strict", "strict: DISCONNECT 0x93 when exceeded; tolerant: counted only"
    )
    topic_alias_maximum: int = setting(64, "topic aliases a client may use", maximum=65535)
    outbound_topic_alias: int = setting(
        16,
        "topic aliases used towards a client that offers them, on the first message while some are free",
        maximum=65535,
    )
    response_information: str = setting(
        "", "prefix for response topics, told to clients that ask; empty tells nothing"
    )
    server_reference: str = setting("", "another server named to clients at drain; empty for none")
    check_payload_format: bool = setting(
        False, "refuse a payload declared UTF-8 that is not (0x99)"
    )
    async_fan_out: bool = setting(
        False, "acknowledge at commit and hand out in slices, rather than after all were handed out"
    )
    fan_out_slice: int = setting(1000, "subscribers served in one slice of a fan-out", minimum=1)
    mqtt3_denied_publish: Literal["acknowledge", "disconnect"] = setting(
        "acknowledge", "what a 3.x client gets for a denied publish"
    )
    second_client: Literal["takeover", "reject"] = setting(
        "takeover", "which of two clients with one client id stays"
    )
    flapping_takeovers: int = setting(
        10, "takeovers of one client id within a minute after which it is slowed", minimum=1
    )
    flapping_delay: Seconds = setting(1.0, "how long a flapping client's CONNECT waits")
    shared_strategy: ShareStrategy = setting(
        "round_robin", "who of a shared subscription's members gets a message"
    )
    shared_groups: Mapping[str, ShareStrategy] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"help": "strategy by group name"}
    )
    max_retained: int = setting(1000000, "retained messages kept")
    max_retained_bytes: Size = setting(
        1 << 30,
        "bytes of retained messages kept: topics, payloads, properties, and who published them",
    )
    check_retain_source: bool = setting(
        True,
        "send a retained message only if its publisher may still publish it; asked again when rights may have changed",
    )
    max_queue_bytes: Size = setting(1 << 30, "bytes of messages queued for all clients together")
    queue_memory: Size = setting(
        256 << 20,
        "bytes of messages queued for durable sessions that are held in memory; the others wait in the store",
    )
    max_write_buffer: Size = setting(
        1 << 20, "unsent bytes to one client above which its messages queue", minimum=1024
    )
    hold_bytes: Size = setting(
        262144,
        "bytes kept of a client's packets behind one that waits; then reading stops",
        minimum=1024,
    )
    hold_timeout: Seconds = setting(
        60.0, "longest time reading stays stopped before the client is disconnected"
    )
    on_revoke: Literal["disconnect", "silent"] = setting(
        "disconnect", "what a client gets whose subscription is revoked"
    )
    publish_depth: int = setting(
        4, "how many times over plugins may answer a message with a message", minimum=1
    )
    authz_cache: int = setting(1024, "decisions remembered per connection")
    authz_cache_total: int = setting(1000000, "decisions remembered for all connections together")
    shutdown_timeout: Seconds = setting(10.0, "how long a drain may take")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """``session:`` what each session may hold."""

    max_expiry: Seconds = setting(
        604800.0, "longest session expiry granted; also that of a 3.x session that is not clean"
    )
    realm: Literal["vouched", "listener", "none"] = setting(
        "vouched",
        "what a session belongs to besides its user: the plugin or listener that vouched for the user, the listener "
        "by which the client came, or nothing",
    )
    other_owner: Literal["refuse", "replace"] = setting(
        "refuse",
        "what becomes of a client whose id has the session of another user or realm: it is refused, or ends that "
        "session and starts an empty one",
    )
    max_inflight: int = setting(
        256,
        "QoS 1 and 2 messages sent to a client and not yet acknowledged",
        minimum=1,
        maximum=65535,
    )
    max_subscriptions: int = setting(10000, "subscriptions of one session", minimum=1)
    subscription_bytes: Size = setting(4194304, "bytes of the topic filters of one session")
    queue_messages: int = setting(10000, "messages waiting for one client")
    queue_bytes: Size = setting(16777216, "bytes of messages waiting for one client")
    queue_qos0: bool = setting(False, "whether QoS 0 messages wait for a client that is away")
    queue_page: int = setting(256, "queued messages held in memory ahead of the client", minimum=1)
    inflight_overflow: Literal["pending", "backpressure"] = setting(
        "pending", "when the window is full: queue, or withhold the publisher's acknowledgement"
    )
    backpressure_timeout: Seconds = setting(
        5.0, "how long backpressure may withhold before it queues"
    )
    queue_drop: Literal["oldest", "newest", "disconnect"] = setting(
        "newest", "what a full queue drops"
    )
    retry_interval: Seconds = setting(
        0.0, "resend unacknowledged messages to 3.x clients after this; 0 never"
    )
    max_will_delay: Seconds = setting(604800.0, "longest will delay granted")


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """``auth:`` who may connect when no plugin decided."""

    default: Verdict = setting("deny", "what holds when no plugin answered on_connect")


@dataclass(frozen=True, slots=True)
class AuthzSettings:
    """``authz:`` what clients may do when no plugin decided."""

    default: Verdict = setting("deny", "what holds when no plugin answered authorize")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of the core's settings."""

    broker: BrokerSettings = BrokerSettings()
    session: SessionSettings = SessionSettings()
    auth: AuthSettings = AuthSettings()
    authz: AuthzSettings = AuthzSettings()
