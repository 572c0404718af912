"""What a hook may answer. None, in every hook, is to abstain: "I have no opinion".

Deny refuses and says so; Drop swallows but acknowledges; a new Message or Subscription replaces; Accept and Allow
consent. Every verdict is immutable, so a plugin may keep and return the same one again and again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.reason import ReasonCode


def _reason(code: object) -> ReasonCode:
    """`code` as our enum; takes integers and whatever carries one in `value`, as paho's ReasonCode does."""
    if isinstance(code, ReasonCode):
        return code
    number = code if isinstance(code, int) else getattr(code, "value", None)
    if not isinstance(number, int):
        raise TypeError(f"not a reason code: {code!r}")
    return ReasonCode(number)


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings for one client. They can only lower what is configured; None leaves it as it is.

    `max_packet_size` is bytes of a packet accepted from the client, `receive_maximum` its unfinished QoS 1 and 2
    publishes, `session_expiry` seconds, `queue_messages` messages that wait for it, `max_subscriptions` its
    subscriptions.
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
                raise ValueError(f"{name} is {value!r}: a number of 0 or more, or None")

    def tighten(self, other: "Limits") -> "Limits":
        """The lower of each pair."""
        return Limits(*(least(getattr(self, n), getattr(other, n)) for n in self.__slots__))


@dataclass(frozen=True, slots=True)
class Accept:
    """Consent to a connection (`on_connect`, `on_auth`).

    `identity` is who the client was found to be. `claims` is what is known of it, as JSON values, since the store keeps
    them: a tuple or set becomes a list, another object its text. At `expires_at` (epoch seconds) the credential ends and
    the client is disconnected with `expiry_code`. Of several plugins that accept, the first to give an identity and the
    first to give claims is believed; of `expires_at` and `limits` the strictest holds. A claim named ``hookmq:ID`` is the
    note of the plugin with that id: each may write its own, which is kept whoever was first, through re-authentication
    by another and in the store; nobody can write another's. `data` of `on_auth` goes to the client as Authentication
    Data, in CONNACK or in the AUTH that ends a re-authentication: the last word of a SCRAM exchange, say.
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
                raise ValueError(
                    f"{code.text} is no refusal: expiry_code takes codes of 0x80 and above"
                )
            object.__setattr__(self, "expiry_code", code)
        # One is made for each client that comes: what is usual is looked at first.
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
                raise TypeError(f"{name} is {type(value).__name__}: {words} or None")


# Compiled code would refuse others, but later, where nobody knows any more which plugin it was.
_ACCEPTED: Final[tuple[tuple[str, Any, str], ...]] = (
    ("identity", str, "str"),
    ("claims", Mapping, "a mapping"),
    ("expires_at", (int, float), "epoch seconds"),
    ("limits", Limits, "Limits"),
    ("data", bytes, "bytes"),
)


@dataclass(frozen=True, slots=True)
class Allow:
    """Consent to an action (`authorize`).

    The answer is remembered for `cache_for` seconds; None is until it is invalidated and 0 not at all, which is right
    for a plugin that looked at the message. `max_qos` lowers the QoS granted or published. Of several plugins that allow,
    the lowest of each holds.
    """

    cache_for: float | None = None
    max_qos: int | None = None

    def __post_init__(self) -> None:
        if self.cache_for is not None and not self.cache_for >= 0:
            raise ValueError(f"cache_for is {self.cache_for!r}: seconds of 0 or more, or None")
        if self.max_qos is not None and self.max_qos not in (0, 1, 2):
            raise ValueError(f"max_qos is {self.max_qos!r}: 0, 1, 2 or None")


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse, and tell the client `code` (clamped to what the packet may carry, mapped for MQTT 3.x) and, if it may be
    told, `reason`. `disconnect` also ends the connection. `rule` names which of the plugin's own rules decided
    (``acl.yaml:12``): it goes to `on_denied` and the log, never to the client.

    `decided` is False if nobody could decide; the core answers so for a plugin that failed. What is asked is refused, and
    nothing that the client has is taken away: subscriptions and what is queued for them stay, a will that is due waits.
    Such an answer is never remembered. Of `authorize` any other
    answer is remembered for `cache_for` seconds, as with `Allow`. A code below 0x80 or one that MQTT does not know is a
    ValueError.
    """

    code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    reason: str | None = None
    disconnect: bool = False
    decided: bool = True
    cache_for: float | None = None
    rule: str = ""

    def __post_init__(self) -> None:
        if self.cache_for is not None and not self.cache_for >= 0:
            raise ValueError(f"cache_for is {self.cache_for!r}: seconds of 0 or more, or None")
        code = _reason(self.code)
        if not code.failed:
            raise ValueError(f"{code.text} is no refusal: Deny takes codes of 0x80 and above")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class Drop:
    """Swallow the message but acknowledge it with `code`, a success. A failing code is a ValueError: that is Deny."""

    code: ReasonCode = ReasonCode.SUCCESS

    def __post_init__(self) -> None:
        code = _reason(self.code)
        if code.failed:
            raise ValueError(f"{code.text} is a refusal: Drop acknowledges, Deny refuses")
        object.__setattr__(self, "code", code)


@dataclass(frozen=True, slots=True)
class Challenge:
    """Go on with enhanced authentication (`on_auth`): send AUTH 0x18 with `data` [MQTT-4.12.0-2]."""

    data: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise TypeError(f"data is {type(self.data).__name__}: bytes")


def least(first: Any, second: Any) -> Any:
    """The lower of two, where None stands for no bound."""
    if first is None:
        return second
    return first if second is None or first <= second else second


__all__ = ["Accept", "Allow", "Challenge", "Deny", "Drop", "Limits"]
