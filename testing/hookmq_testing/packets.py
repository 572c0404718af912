"""Functions that both of the kit's clients use. They build requests, answer deliveries, resolve topic aliases and print
packets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hookmq.mqtt.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeRequest,
)
from hookmq.mqtt.properties import BY_ID, EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode

Filters = str | SubscribeRequest | Iterable[str | tuple[str, int] | SubscribeRequest]
"""One filter, or several. Each is a string, a pair of a filter and its QoS, or a `SubscribeRequest`."""


def make_properties(
    given: "Properties | Mapping[str, Any] | None", more: Mapping[str, Any]
) -> Properties:
    """Return the `given` properties with `more` added."""
    if given is None:
        given = EMPTY
    elif not isinstance(given, Properties):
        given = Properties(**given)
    return given.replace(**more) if more else given


def make_subscribe(
    packet_id: int,
    filters: Filters,
    qos: int = 0,
    *,
    no_local: bool = False,
    retain_as_published: bool = False,
    retain_handling: int = 0,
    identifier: int | None = None,
    **properties: Any,
) -> Subscribe:
    """Return a SUBSCRIBE. `qos` and the options apply to each filter that is not a `SubscribeRequest`."""
    if isinstance(filters, str | SubscribeRequest):
        filters = [filters]
    requests = []
    for one in filters:
        if isinstance(one, SubscribeRequest):
            requests.append(one)
            continue
        name, level = (one, qos) if isinstance(one, str) else one
        requests.append(
            SubscribeRequest(name, level, no_local, retain_as_published, retain_handling)
        )
    identifiers = None if identifier is None else (identifier,)
    given = Properties(subscription_identifier=identifiers, **properties)
    return Subscribe(packet_id, tuple(requests), given)


def answer_to(packet: Packet) -> Packet | None:
    """Return a correct client's acknowledgement for PUBLISH, PUBREC or PUBREL, or None for other packets."""
    if isinstance(packet, Publish):
        if packet.qos == 1:
            return Puback(packet.packet_id)
        return Pubrec(packet.packet_id) if packet.qos == 2 else None
    if isinstance(packet, Pubrec):
        return Pubrel(packet.packet_id) if packet.code < 0x80 else None
    return Pubcomp(packet.packet_id) if isinstance(packet, Pubrel) else None


class TopicAliases:
    """The topic aliases that the broker has set on one connection."""

    def __init__(self) -> None:
        self._topics: dict[int, str] = {}

    def resolve(self, packet: Publish) -> Publish:
        """Return `packet` with its topic filled in. Raises AssertionError if the broker uses an alias that it has not
        set.
        """
        alias = packet.properties.topic_alias
        if alias is None:
            return packet
        if packet.topic:
            self._topics[alias] = packet.topic
            return packet
        if alias not in self._topics:
            raise AssertionError(f"the broker used topic alias {alias} before it set it")
        return replace(packet, topic=self._topics[alias])


def show(packet: Packet) -> str:
    """Return a packet as text for error messages, with the payload and properties that `repr` leaves out."""
    text = repr(packet)
    payload = getattr(packet, "payload", None)
    if payload is not None:
        text += f" payload={payload[:60]!r}" + ("..." if len(payload) > 60 else "")
    properties = getattr(packet, "properties", EMPTY)
    if properties:
        found = (f"{BY_ID[i].name}: {value!r}" for i, value in properties.values.items())
        text += " {" + ", ".join(found) + "}"
    return text


def show_code(code: int) -> str:
    """Return a reason code as text for error messages."""
    try:
        return f"0x{code:02X} ({ReasonCode(code).text})"
    except ValueError:
        return f"0x{code:02X}"
