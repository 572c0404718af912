"""The values that a hook may return. In every hook, None abstains: the plugin leaves the decision to others.

Deny refuses and notifies the client. Drop discards the message but acknowledges it. Handled acknowledges a message that
the plugin takes over. A new Message or Subscription
replaces the old one. Accept and Allow consent. Verdicts are immutable, so a plugin may reuse the same object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hookmq.mqtt.reason_codes import ReasonCode


def _reason(code: object) -> ReasonCode:
    """Return `code` as a ReasonCode. Accepts integers, and objects with an integer `value` such as paho's ReasonCode."""
    if isinstance(code, ReasonCode):
        return code
    number = code if isinstance(code, int) else getattr(code, "value", None)
    if not isinstance(number, int):
        raise TypeError(f"not a reason code: {code!r}")
    return ReasonCode(number)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one client. They can only lower the configured limits. None keeps the configured limit.

    - `max_packet_size`: the largest packet from the client, in bytes.
    - `receive_maximum`: QoS 1 and 2 messages from the client that may be in flight.
    - `session_expiry`: the longest session expiry, in seconds.
    - `queue_messages`: messages that may be queued for the client.
    - `max_subscriptions`: subscriptions that the client may have.

    Values must be integers of at least 0; others raise ValueError.
    """

    max_packet_size: int | None = None
    receive_maximum: int | None = None
    session_expiry: int | None = None
    queue_messages: int | None = None
    max_subscriptions: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ValueError(f"{name} is {value!r}: expected an integer of at least 0, or None")

    def tighten(self, other: "Limits") -> "Limits":
        """Combine two sets of limits, taking the lower value of each."""
        return Limits(*(least(getattr(self, n), getattr(other, n)) for n in self.__slots__))


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept a connection (`on_connect`, `on_auth`).

    - `identity`: the name under which the plugin authenticated the client.
    - `claims`: facts about the client, as JSON values because the store keeps them. Tuples and sets become lists;
      other objects become strings.
    - `expires_at`: epoch seconds at which the client is disconnected with `expiry_code`.
    - `limits`: limits for this client.
    - `data`: Authentication Data sent in CONNACK or the final AUTH. Only for `on_auth`.

    If several plugins accept, the broker uses the first identity, the first claims, and the strictest `expires_at`
    and `limits`. Each plugin may also add one claim named ``hookmq:ID``, where ``ID`` is its plugin id. The broker
    keeps this claim through re-authentication and in the store. It removes claims named after other plugins.
    """

    identity: str | None = None
    claims: Mapping[str, Any] | None = None
    expires_at: float | None = None
    limits: Limits | None = None
    data: bytes | None = None
    expiry_code: ReasonCode = ReasonCode.MAXIMUM_CONNECT_TIME

    def __post_init__(self) -> None:
        if self.expiry_code is not ReasonCode.MAXIMUM_CONNECT_TIME:
            code = _reason(self.expiry_code)
            if not code.failed:
                raise ValueError(f"{code.text} is not a failure: expiry_code must be 0x80 or above")
            object.__setattr__(self, "expiry_code", code)
        # One is made for each connection, usually without arguments.
        if (
            self.identity is None
            and self.claims is None
            and self.expires_at is None
            and self.limits is None
            and self.data is None
        ):
            return
        for name, kind, words in _ACCEPTED:
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is {type(value).__name__}: expected {words} or None")


# Compiled code would also reject other types, but too late to name the plugin.
_ACCEPTED: Final[tuple[tuple[str, Any, str], ...]] = (
    ("identity", str, "str"),
    ("claims", Mapping, "a mapping"),
    ("expires_at", (int, float), "epoch seconds"),
    ("limits", Limits, "Limits"),
    ("data", bytes, "bytes"),
)


@dataclass(frozen=True, slots=True)
class Allow:
    """Allow an action (`authorize`).

    The verdict is cached for `cache_for` seconds. None caches it until it is invalidated; 0 does not cache it. Use 0 if
    the verdict depends on the message itself. `max_qos` limits the QoS of a subscription or message. If several plugins
    allow the action, the lowest `cache_for` and the lowest `max_qos` apply. Invalid values raise ValueError. `rule` names
    the plugin's rule that allowed the action, such as ``acl.yaml:12``. Only `BrokerHandle.explain` uses it.
    """

    cache_for: float | None = None
    max_qos: int | None = None
    rule: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.cache_for is not None and not self.cache_for >= 0:
            raise ValueError(
                f"cache_for is {self.cache_for!r}: expected seconds of at least 0, or None"
            )
        if self.max_qos is not None and self.max_qos not in (0, 1, 2):
            raise ValueError(f"max_qos is {self.max_qos!r}: expected 0, 1, 2 or None")


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse, and report the reason to the client.

    - `code`: a reason code of 0x80 or above; lower codes raise ValueError. The core replaces codes that the packet cannot
      carry, and maps them for MQTT 3.
    - `reason`: a Reason String for MQTT 5 clients.
    - `disconnect`: whether to close the connection too.
    - `decided`: False if the decision could not be made. The core sets this if a plugin failed. The request is refused,
      but existing subscriptions and queues are kept, and due wills wait. The verdict is never cached.
    - `cache_for`: seconds to cache a Deny from `authorize`, as in `Allow`.
    - `rule`: the plugin's rule that refused the request, such as ``acl.yaml:12``. It is passed to `on_denied` and the
      log, never to the client.
    """

    code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    reason: str | None = None
    disconnect: bool = False
    decided: bool = True
    cache_for: float | None = None
    rule: str = ""

    def __post_init__(self) -> None:
        if self.cache_for is not None and not self.cache_for >= 0:
            raise ValueError(
                f"cache_for is {self.cache_for!r}: expected seconds of at least 0, or None"
            )
        code = _reason(self.code)
        if not code.failed:
            raise ValueError(f"{code.text} is not a failure: Deny needs a code of 0x80 or above")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class PluginDecision:
    """What one plugin decided: see `BrokerHandle.explain`. `verdict` is None if the plugin abstained. `plugin` is '' if
    all plugins abstained and a setting decided."""

    plugin: str
    verdict: Accept | Allow | Deny | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Discard the message but acknowledge it with `code`. A code of 0x80 or above raises ValueError; use Deny
    instead."""

    code: ReasonCode = ReasonCode.SUCCESS

    def __post_init__(self) -> None:
        code = _reason(self.code)
        if code.failed:
            raise ValueError(f"{code.text} is a failure: use Deny to refuse, Drop to acknowledge")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class Handled:
    """Take over the message (`on_publish`, `on_will`): the plugin is responsible for it from now on.

    The broker acknowledges it with `code`, once everything recorded in this turn is committed. It neither routes nor
    retains the message, calls no later plugin, and does not count it as dropped. A code of 0x80 or above raises
    ValueError; use Deny instead.
    """

    code: ReasonCode = ReasonCode.SUCCESS

    def __post_init__(self) -> None:
        code = _reason(self.code)
        if code.failed:
            raise ValueError(
                f"{code.text} is a failure: use Deny to refuse, Handled to acknowledge"
            )
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class Challenge:
    """Continue enhanced authentication (`on_auth`): send AUTH 0x18 with `data` [MQTT-4.12.0-2]."""

    data: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"data is {type(self.data).__name__}: expected bytes")


def least(first: Any, second: Any) -> Any:
    """Return the lower of two bounds. None means unbounded."""
    if first is None:
        return second
    return first if second is None or first <= second else second


__all__ = ["Accept", "Allow", "Challenge", "Deny", "Drop", "Handled", "Limits", "PluginDecision"]
