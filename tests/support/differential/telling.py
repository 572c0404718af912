"""Describe a broker's packets as text, leaving out the details that brokers may choose freely.

Packet ids become ordinals (#1, #2). Reason strings and assigned client ids lose their text. The short and long forms of
an acknowledgement produce the same text.
"""

import zlib

import mqttbytes as m

_NAMES = {
    0x01: "format", 0x02: "expiry", 0x03: "content-type", 0x08: "response-topic", 0x09: "correlation",
    0x0B: "identifier", 0x11: "session-expiry", 0x12: "assigned-id", 0x13: "server-keep-alive",
    0x15: "auth-method", 0x16: "auth-data", 0x1A: "response-information", 0x1C: "server-reference",
    0x1F: "reason", 0x21: "receive-maximum", 0x22: "alias-maximum", 0x23: "alias", 0x24: "maximum-qos",
    0x25: "retain-available", 0x26: "user", 0x27: "packet-size", 0x28: "wildcards", 0x29: "identifiers",
    0x2A: "shared",
}  # fmt: skip
_KINDS = {
    2: "CONNACK", 3: "PUBLISH", 4: "PUBACK", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP", 9: "SUBACK",
    11: "UNSUBACK", 13: "PINGRESP", 14: "DISCONNECT", 15: "AUTH",
}  # fmt: skip
_LIMITS = frozenset((0x21, 0x22, 0x27))
"""CONNACK properties that reveal the broker's configuration. They are compared only in scripts about them."""


def told(data: bytes) -> str:
    """Return bytes as text: short values as they are, long ones as a length and a checksum."""
    if len(data) > 40:
        return f"<{len(data)} bytes {zlib.crc32(data):08x}>"
    return data.decode("utf-8", "backslashreplace").encode("unicode_escape").decode()


def _property(data: bytes) -> str:
    number, value = data[0], data[1:]
    name = _NAMES.get(number, f"0x{number:02x}")
    if number in (0x12, 0x1F):
        return name
    if number == 0x26:
        size = int.from_bytes(value[:2], "big")
        return f"{name}={told(value[2 : 2 + size])}:{told(value[4 + size :])}"
    if number == 0x0B:
        shift = (byte & 127 for byte in reversed(value))
        total = 0
        for digit in shift:
            total = total << 7 | digit
        return f"{name}={total}"
    if number in (0x03, 0x08, 0x09, 0x15, 0x16, 0x1A, 0x1C):
        return f"{name}={told(value[2:])}"
    if number == 0x02 and value < (1000).to_bytes(4, "big"):
        # The brokers' clocks count whole seconds differently, so compare rounded values.
        return f"{name}=about {-(-int.from_bytes(value, 'big') // 10) * 10}"
    return f"{name}={int.from_bytes(value, 'big')}"


class Teller:
    """Describes the packets of one connection. It numbers the packet ids of a session's deliveries in the order of their
    arrival.
    """

    def __init__(self, level: int, ids: list[int], limits: bool) -> None:
        self.level = level
        self.ids = ids
        self.limits = limits
        self.aliases: dict[int, bytes] = {}
        self.qos: dict[int, int] = {}
        """The QoS of each received PUBLISH, by packet id."""

    def tell(self, frame: bytes) -> str:
        """Return a packet as text."""
        kind = frame[0] >> 4
        name = _KINDS.get(kind, f"packet 0x{frame[0]:02x}")
        rest = m.body(frame)
        if kind == 3:
            return self._publish(frame)
        if kind == 2:
            flags, code = rest[:2]
            words = [name, f"0x{code:02x}", "present" if flags & 1 else ""]
            found = self._properties(rest[2:], () if self.limits else _LIMITS)
            return " ".join(filter(None, [*words, *found]))
        if kind in (4, 5, 6, 7):
            number = int.from_bytes(rest[:2], "big")
            words = [name, self.ordinal(number) if kind == 6 else str(number)]
            if self.level == 5:
                words.append(f"0x{rest[2] if len(rest) > 2 else 0:02x}")
                words += self._properties(rest[3:], (0x1F,))
            return " ".join(words)
        if kind in (9, 11):
            words = [name, str(int.from_bytes(rest[:2], "big"))]
            codes = rest[2:]
            if self.level == 5:
                properties, codes = m.split_section(codes)
                words += [_property(one) for one in properties if one[0] != 0x1F]
            return " ".join(words + [f"0x{code:02x}" for code in codes])
        if kind == 14:
            return " ".join(
                [name, f"0x{rest[0] if rest else 0:02x}", *self._properties(rest[1:], (0x1F,))]
            )
        return f"{name} {rest.hex()}".strip()

    def ordinal(self, number: int) -> str:
        """Return the ordinal of a packet id within its session, such as #2."""
        if number not in self.ids:
            self.ids.append(number)
        return f"#{self.ids.index(number) + 1}"

    def _properties(self, data: bytes, without: "tuple[int, ...] | frozenset[int]") -> list[str]:
        if not data or self.level < 5:
            return []
        found = [one for one in m.split_section(data)[0] if one[0] not in without]
        return [_property(one) for one in sorted(found, key=lambda one: one[0])]

    def _publish(self, frame: bytes) -> str:
        first, topic, number, properties, payload = m.split_publish(frame, self.level)
        kept = []
        for one in sorted(properties, key=lambda one: one[0]):
            if one[0] == 0x23:
                # Brokers may choose whether to use an alias, but it must stand for the right topic.
                alias = int.from_bytes(one[1:], "big")
                topic = self.aliases[alias] = topic or self.aliases[alias]
            else:
                kept.append(_property(one))
        qos = first >> 1 & 3
        flags = [word for bit, word in ((8, "dup"), (1, "retain")) if first & bit]
        ordinal = [self.ordinal(number)] if qos else []
        self.qos[number] = qos
        name = f"{told(topic) or '(no topic)'} '{told(payload)}'"
        return " ".join(["PUBLISH", name, f"q{qos}", *flags, *kept, *ordinal])


def arranged(lines: list[str]) -> list[str]:
    """Sort the packets of one step, because the standard does not fully define their order.

    Messages come last, sorted by topic. Messages on the same topic keep their order.
    """
    messages = [line for line in lines if line.startswith("PUBLISH ")]
    others = [line for line in lines if not line.startswith("PUBLISH ") and line != "closed"]
    end = ["closed"] if "closed" in lines else []
    return others + sorted(messages, key=lambda line: line.split(" ", 2)[1]) + end
