"""The plugin's settings: the queues, their groups and limits."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.mqtt_api import contains, parse_share, validate_filter
from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_queues.backoff import Backoff
from hookmq_queues.consumers import MAX_WEIGHT, Mode
from hookmq_queues.keys import KeyTemplate
from hookmq_queues.positions import FORMS, parse_position
from hookmq_queues.topics import PREFIX

QueueType = Literal["classic", "stream", "ephemeral"]
Compact = Literal["none", "key", "topic"]
OnFull = Literal["reject", "drop_oldest", "drop_newest"]
Settle = Literal["puback", "explicit"]
Order = Literal["fifo", "priority", "by_key"]
Scope = Literal["client", "queue"]
_ONLY: Final[dict[str, tuple[QueueType, ...]]] = {
    "max_messages": ("classic", "ephemeral"),
    "max_bytes": ("classic", "ephemeral"),
    "on_full": ("classic", "ephemeral"),
    "order": ("classic",),
    "memory": ("classic", "stream"),
    "expires_after": ("ephemeral",),
    "retention": ("stream",),
    "compact": ("stream",),
}
"""The settings that apply only to some types."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Pattern for the names of queues and groups. A queue's folder has the queue's name."""
DEFAULT_GROUP: Final = "default"


@dataclass(frozen=True)
class GroupConfig:
    """The settings of a group of consumers."""

    name: str = field(metadata={"help": "its name: letters, digits, _ . -"})
    settle: Settle = setting(
        "puback",
        "puback: a message is settled by its PUBACK; explicit: by a message to $queue/NAME/$ack, $nack or $reject",
    )
    backoff: Backoff = setting(Backoff(), "delay of messages that are delivered again")
    start: str = setting(
        "", "where it starts when it is new, instead of at the start of its stream"
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"groups: {self.name!r} is not a name; use letters, digits, _ . -")


@dataclass(frozen=True)
class RetentionConfig:
    """Which messages a stream keeps. A message that exceeds one of the limits is deleted."""

    age: Seconds = setting(0.0, "how long messages are kept; 0 means without limit", minimum=0)
    bytes: Size = setting(
        1 << 30, "approximate size of the messages that are kept", minimum=1 << 16
    )
    messages: int = setting(0, "number of messages that are kept; 0 means without limit", minimum=0)
    wait_for_groups: Size = setting(
        0,
        "size up to which messages are kept until every group has settled them, even above the other limits; 0 means "
        "that messages do not wait",
        minimum=0,
    )

    def __post_init__(self) -> None:
        if self.wait_for_groups and self.wait_for_groups <= self.bytes:
            raise ConfigError("retention: wait_for_groups must be larger than bytes")


@dataclass(frozen=True)
class QueueConfig:
    """The settings of a queue."""

    name: str = field(metadata={"help": "its name and that of its folder: letters, digits, _ . -"})
    bindings: tuple[str, ...] = setting(
        (), "topic filters; a message that matches one of them is also stored in the queue"
    )
    groups: tuple[str | GroupConfig, ...] = setting(
        (DEFAULT_GROUP,),
        "groups of consumers, as names or with their settings; each group gets every message. A subscription to "
        "$queue/NAME is one to the first group",
    )
    groups_on_first_use: bool = setting(
        False,
        "whether a subscription creates a group that does not exist, with the settings of the first group",
    )
    max_groups: int = setting(
        100, "number of groups at which clients cannot create more", minimum=1, maximum=10_000
    )
    group_expiry: Seconds = setting(
        86400.0,
        "time without a consumer after which a group that a client created is deleted",
        minimum=1.0,
        maximum=31_536_000,
    )
    type: QueueType = setting(
        "classic",
        "classic: a message is deleted when every group has settled it; stream: messages stay as retention says; "
        "ephemeral: messages are in memory only",
    )
    max_messages: int = setting(
        100_000, "number of unsettled messages at which the queue is full", minimum=1
    )
    max_bytes: Size = setting(
        1 << 30, "size of the unsettled messages at which the queue is full", minimum=1 << 16
    )
    on_full: OnFull = setting(
        "reject",
        "when the queue is full: reject refuses messages (0x97), drop_oldest and drop_newest drop one",
    )
    visibility_timeout: Seconds = setting(
        30.0,
        "time to acknowledge a message, after which it is delivered again",
        minimum=0.1,
        maximum=604800,
    )
    delivery_limit: int = setting(
        0,
        "deliveries to one group after which a message goes to dead_letter; 0 means no limit",
        minimum=0,
        maximum=1_000_000,
    )
    dead_letter: str = setting(
        "", "the queue for messages that reached delivery_limit or that a consumer rejected"
    )
    dead_letter_expired: bool = setting(
        False, "whether messages that expire go to dead_letter, instead of being dropped"
    )
    message_ttl: Seconds = setting(0.0, "how long a message may wait; 0 means forever")
    prefetch: int = setting(
        100,
        "unacknowledged messages of one consumer; its Receive Maximum limits them too",
        minimum=1,
        maximum=65535,
    )
    max_unacknowledged: int = setting(
        10_000, "unacknowledged messages of one group", minimum=1, maximum=1_000_000
    )
    order: Order = setting(
        "fifo",
        "which waiting message is next: fifo is the oldest, priority the one with the highest user property priority, "
        "and by_key the oldest one whose key no older unsettled message has",
    )
    order_key: str = setting(
        "${property.key}",
        "the key of a message for by_key, made of ${topic}, ${topic.N} (a level), ${client_id} and ${property.NAME}",
    )
    lookahead: int = setting(
        1000,
        "number of waiting messages from which priority, by_key and filters below the queue choose",
        minimum=1,
        maximum=100_000,
    )
    dedupe_window: Seconds = setting(
        0.0,
        "how long the queue remembers the user property message-id of a message and ignores its duplicates; 0 means "
        "that the property has no effect",
        maximum=604800,
    )
    dedupe_ids: int = setting(
        100_000, "how many message-ids the queue remembers", minimum=1, maximum=10_000_000
    )
    dedupe_scope: Scope = setting(
        "client",
        "duplicates have the same message-id and, with client, the same publisher; queue ignores the publisher",
    )
    max_delay: Seconds = setting(
        86400.0,
        "the longest delay that a publisher may ask for; 0 refuses delayed messages",
        maximum=31_536_000,
    )
    max_delayed: int = setting(
        10_000, "maximum number of delayed messages", minimum=1, maximum=10_000_000
    )
    consumers: Mode = setting(
        "shared",
        "which consumers of a group get messages: shared means all, single_active the one that subscribed first, and "
        "exclusive also refuses a second one",
    )
    weights: Mapping[str, int] = field(
        default_factory=dict,
        metadata={
            "help": f"weights of consumers, from 1 to {MAX_WEIGHT}, by a pattern of the client id such as fast-*; the "
            "first one that matches counts, and other clients have the weight 1"
        },
    )
    memory: Size = setting(
        16 << 20, "size of the waiting messages in memory; the others are read from disk", minimum=0
    )
    retention: RetentionConfig = setting(
        RetentionConfig(), "which messages a stream keeps; only for streams"
    )
    start: str = setting(
        "first", f"where a new group of a stream starts: {FORMS}; only for streams"
    )
    compact: Compact = setting(
        "none",
        "key and topic keep only the newest message of each user property key, or of each topic; only for streams",
    )
    expires_after: Seconds = setting(
        60.0,
        "how long a group of an ephemeral queue keeps messages without a consumer; only for ephemeral queues",
        minimum=0,
        maximum=604800,
    )

    @cached_property
    def group_settings(self) -> Mapping[str, GroupConfig]:
        """The settings of the groups by name, in the order of the configuration."""
        made = (GroupConfig(one) if isinstance(one, str) else one for one in self.groups)
        return {one.name: one for one in made}

    def settings_of(self, group: str) -> GroupConfig:
        """Return a group's settings. A group created by a client has the settings of the first group."""
        found = self.group_settings.get(group)
        return found or replace(self.group_settings[self.first_group], name=group)

    @property
    def first_group(self) -> str:
        """The group that a subscription joins if it names none."""
        return next(iter(self.group_settings))

    def weight_of(self, client_id: str) -> int:
        """Return the weight of a client's consumers."""
        for pattern, weight in self.weights.items():
            if fnmatchcase(client_id, pattern):
                return weight
        return 1

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not a name; use letters, digits, _ . -")
        for one in self.bindings:
            try:
                validate_filter(one)
            except Exception as error:
                raise ConfigError(f"bindings: {one!r} is not a topic filter: {error}") from None
            if parse_share(one)[0] is not None:
                raise ConfigError(f"bindings: {one!r}: a queue cannot use a shared subscription")
            if one.startswith(PREFIX) or contains(one, PREFIX + self.name):
                raise ConfigError(
                    f"bindings: {one!r} would capture messages of queues",
                    hint=f"publish to {PREFIX}{self.name} instead",
                )
        self._check_type()
        if self.delivery_limit and not self.dead_letter:
            raise ConfigError(
                f"dead_letter: {self.name} has a delivery_limit, so it needs this too"
            )
        if self.dead_letter_expired and not self.dead_letter:
            raise ConfigError(
                f"dead_letter: {self.name} has dead_letter_expired, so it needs this too"
            )
        KeyTemplate(self.order_key).check("order_key")
        for pattern, weight in self.weights.items():
            if not 1 <= weight <= MAX_WEIGHT:
                raise ConfigError(
                    f"weights: expected a number from 1 to {MAX_WEIGHT} for {pattern!r}, found {weight}"
                )
        if not self.groups:
            raise ConfigError(f"groups: the queue {self.name} has no group")
        if len(self.group_settings) != len(self.groups):
            raise ConfigError("groups: a name is listed twice")

    def _check_type(self) -> None:
        """Check that the settings suit the queue's type, and that `start` is a valid position."""
        for key, types in _ONLY.items():
            default = QueueConfig.__dataclass_fields__[key].default
            if self.type not in types and getattr(self, key) != default:
                raise ConfigError(
                    f"{key}: {self.name} is a queue of the type {self.type}, which does not have this setting"
                )
        for one in (self.start, *(group.start for group in self.group_settings.values())):
            try:
                parse_position(one or "first")
            except ValueError as error:
                raise ConfigError(f"start: {error}") from None
            if one not in ("", "first") and self.type != "stream":
                raise ConfigError(f"start: {self.name} is not a stream")


@dataclass(frozen=True)
class FirstUse(QueueConfig):
    """The settings for queues that are created when a client first uses them. The keys are the same as for a queue,
    except `name` and `bindings`.
    """

    name: str = field(default="", metadata={"bind": False})
    pattern: str = field(
        default="",
        metadata={"help": "names of queues, such as tasks-*; * stands for any characters"},
    )
    maximum: int = setting(
        100, "maximum number of queues for this pattern", minimum=1, maximum=10_000
    )

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ConfigError("pattern: this key is missing")
        if self.bindings:
            raise ConfigError("bindings: a queue that a client creates cannot capture messages")
        values = {one.name: getattr(self, one.name) for one in fields(QueueConfig)}
        try:
            QueueConfig(**{**values, "name": self.pattern.replace("*", "x")})
        except ConfigError as error:
            message = error.message
            if message.startswith("name: "):
                message = (
                    f"pattern: {self.pattern!r} is not a name with *; use letters, digits, _ . -"
                )
            raise ConfigError(message, hint=error.hint) from None

    def matches(self, name: str) -> bool:
        """Return whether a queue with this name may be created."""
        parts = (re.escape(one) for one in self.pattern.split("*"))
        return re.fullmatch(".*".join(parts), name) is not None


def plain_settings(config: QueueConfig, *, changed: bool = False) -> dict[str, Any]:
    """Return a queue's settings as JSON values, without its name. With `changed`, leave out the defaults."""
    found: dict[str, Any] = {}
    for one in fields(QueueConfig):
        value = getattr(config, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if one.name != "name" and not (changed and value == default):
            found[one.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def check_dead_letters(first: QueueConfig, known: Mapping[str, QueueConfig]) -> None:
    """Check that each dead-letter queue exists. Dead letters must never return to the queue they came from. Raises
    ConfigError.
    """
    name = first.dead_letter
    for _ in range(len(known) + 1):
        if not name:
            return
        if name == first.name:
            raise ConfigError(f"dead_letter: messages of {name} would return to it")
        if name not in known:
            raise ConfigError(f"dead_letter: there is no queue {name!r}")
        if known[name].type == "ephemeral":
            raise ConfigError(f"dead_letter: {name} is ephemeral and would lose dead letters")
        name = known[name].dead_letter


@dataclass(frozen=True)
class QueuesConfig:
    """The settings of the plugin."""

    path: Path = field(metadata={"help": "folder of the queues; created if missing"})
    queues: tuple[QueueConfig, ...] = field(default=(), metadata={"help": "the queues"})
    sync: bool = setting(
        True,
        "fsync before acknowledging; with false, messages survive the end of the process but not a power cut",
    )

    on_first_use: tuple[FirstUse, ...] = field(
        default=(),
        metadata={
            "help": "queues that are created when a client first publishes or subscribes to them"
        },
    )
    max_stored: int = setting(
        1000,
        "maximum number of queues that operators and clients create, in addition to `queues`",
        minimum=0,
        maximum=10_000,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        names = [one.name.lower() for one in self.queues]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"queues: {name} is listed twice")
        known = {one.name: one for one in self.queues}
        for one in self.queues:
            try:
                check_dead_letters(one, known)
            except ConfigError as error:
                raise ConfigError(f"queues: {one.name}: {error.message}") from None
        patterns = [one.pattern for one in self.on_first_use]
        if len(set(patterns)) != len(patterns):
            raise ConfigError("on_first_use: a pattern is listed twice")
        for made in self.on_first_use:
            if made.dead_letter and made.dead_letter not in known:
                raise ConfigError(
                    f"on_first_use: {made.pattern}: dead_letter: there is no queue {made.dead_letter!r}"
                )
