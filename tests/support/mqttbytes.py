"""MQTT packets assembled by hand as bytes, without the broker's own codec.

`level` is 4 for MQTT 3.1.1 and 5 for MQTT 5.0. It is 3 for MQTT 3.1, whose packets are the same as in 3.1.1 except for
CONNECT. `properties` are the concatenated encoded properties, without the length that precedes them.
"""

Field = str | bytes

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"


def varint(number: int) -> bytes:
    """Encode a variable byte integer."""
    out = b""
    while True:
        number, digit = divmod(number, 128)
        out += bytes((digit | (128 if number else 0),))
        if not number:
            return out


def raw(value: Field) -> bytes:
    return value.encode() if isinstance(value, str) else value


def text(value: Field) -> bytes:
    """Encode a string or binary field: a two-byte length, then the bytes."""
    data = raw(value)
    return len(data).to_bytes(2, "big") + data


def packet(first: int, *body: bytes) -> bytes:
    """Encode a packet with this first byte."""
    whole = b"".join(body)
    return bytes((first,)) + varint(len(whole)) + whole


def section(properties: bytes, level: int = 5) -> bytes:
    """Encode the property section with its length. In versions before MQTT 5, the section is empty."""
    return varint(len(properties)) + properties if level == 5 else b""


def uint16(number: int) -> bytes:
    return number.to_bytes(2, "big")


# --- properties -------------------------------------------------------------------------------------------------------


def payload_format(value: int) -> bytes:
    return bytes((0x01, value))


def expiry(seconds: int) -> bytes:
    """Encode a Message Expiry Interval."""
    return b"\x02" + seconds.to_bytes(4, "big")


def content_type(value: Field) -> bytes:
    return b"\x03" + text(value)


def response_topic(value: Field) -> bytes:
    return b"\x08" + text(value)


def correlation(value: bytes) -> bytes:
    return b"\x09" + text(value)


def identifier(number: int) -> bytes:
    """Encode a Subscription Identifier."""
    return b"\x0b" + varint(number)


def session_expiry(seconds: int) -> bytes:
    return b"\x11" + seconds.to_bytes(4, "big")


def auth_method(value: Field) -> bytes:
    return b"\x15" + text(value)


def auth_data(value: bytes) -> bytes:
    return b"\x16" + text(value)


def problem_information(value: int) -> bytes:
    return bytes((0x17, value))


def will_delay(seconds: int) -> bytes:
    return b"\x18" + seconds.to_bytes(4, "big")


def response_information(value: int) -> bytes:
    """Encode a Request Response Information."""
    return bytes((0x19, value))


def reason_string(value: Field) -> bytes:
    return b"\x1f" + text(value)


def receive_maximum(number: int) -> bytes:
    return b"\x21" + uint16(number)


def alias_maximum(number: int) -> bytes:
    return b"\x22" + uint16(number)


def alias(number: int) -> bytes:
    """Encode a Topic Alias."""
    return b"\x23" + uint16(number)


def user(name: Field, value: Field) -> bytes:
    """Encode a User Property."""
    return b"\x26" + text(name) + text(value)


def packet_size(number: int) -> bytes:
    """Encode a Maximum Packet Size."""
    return b"\x27" + number.to_bytes(4, "big")


# --- packets ----------------------------------------------------------------------------------------------------------


def connect(
    client_id: Field = "c",
    *,
    level: int = 5,
    clean: bool = True,
    keep_alive: int = 0,
    properties: bytes = b"",
    will: tuple[Field, bytes] | None = None,
    will_qos: int = 0,
    will_retain: bool = False,
    will_properties: bytes = b"",
    username: Field | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    rest: bytes = b"",
    name: Field | None = None,
) -> bytes:
    """Encode CONNECT. `flags` overrides the computed connect flags; `rest` is appended."""
    made = 2 if clean else 0
    payload = text(client_id)
    if will is not None:
        made |= 4 | will_qos << 3 | will_retain << 5
        payload += section(will_properties, level) + text(will[0]) + text(will[1])
    if username is not None:
        made |= 0x80
        payload += text(username)
    if password is not None:
        made |= 0x40
        payload += text(password)
    if name is None:
        name = "MQIsdp" if level & 0x7F == 3 else "MQTT"
    head = text(name)
    head += bytes((level, made if flags is None else flags)) + uint16(keep_alive)
    return packet(0x10, head, section(properties, level), payload, rest)


def publish(
    topic: Field,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 0,
    *,
    level: int = 5,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    """Encode PUBLISH."""
    first = 0x30 | dup << 3 | qos << 1 | retain
    number = uint16(packet_id) if qos else b""
    return packet(first, text(topic), number, section(properties, level), payload)


def _acknowledgement(first: int, packet_id: int, code: int | None, properties: bytes) -> bytes:
    body = uint16(packet_id)
    if code is not None:
        body += bytes((code,))
    if properties:
        body += section(properties)
    return packet(first, body)


def puback(packet_id: int, code: int | None = None, properties: bytes = b"") -> bytes:
    return _acknowledgement(0x40, packet_id, code, properties)


def pubrec(packet_id: int, code: int | None = None, properties: bytes = b"") -> bytes:
    return _acknowledgement(0x50, packet_id, code, properties)


def pubrel(packet_id: int, code: int | None = None, properties: bytes = b"") -> bytes:
    return _acknowledgement(0x62, packet_id, code, properties)


def pubcomp(packet_id: int, code: int | None = None, properties: bytes = b"") -> bytes:
    return _acknowledgement(0x70, packet_id, code, properties)


def subscribe(
    packet_id: int, *filters: tuple[Field, int], level: int = 5, properties: bytes = b""
) -> bytes:
    """Encode SUBSCRIBE. Each filter is paired with its options byte."""
    requests = b"".join(text(name) + bytes((options,)) for name, options in filters)
    return packet(0x82, uint16(packet_id), section(properties, level), requests)


def suback(packet_id: int, *codes: int, level: int = 5) -> bytes:
    return packet(0x90, uint16(packet_id), section(b"", level), bytes(codes))


def unsubscribe(packet_id: int, *filters: Field, level: int = 5, properties: bytes = b"") -> bytes:
    return packet(0xA2, uint16(packet_id), section(properties, level), b"".join(map(text, filters)))


def unsuback(packet_id: int, *codes: int, level: int = 5) -> bytes:
    if level != 5:
        return packet(0xB0, uint16(packet_id))
    return packet(0xB0, uint16(packet_id), section(b""), bytes(codes))


def disconnect(code: int | None = None, properties: bytes = b"") -> bytes:
    if code is None:
        return packet(0xE0)
    return packet(0xE0, bytes((code,)), section(properties) if properties else b"")


def auth(code: int, properties: bytes = b"") -> bytes:
    return packet(0xF0, bytes((code,)), section(properties))


# --- parsing ----------------------------------------------------------------------------------------------------------


def frames(data: bytes) -> list[bytes]:
    """Split `data` into packets, all of which must be complete."""
    found = []
    while data:
        size, digits = 0, 1
        while True:
            byte = data[digits]
            size |= (byte & 127) << 7 * (digits - 1)
            digits += 1
            if byte < 128:
                break
        end = digits + size
        assert end <= len(data), f"half a packet: {data.hex(' ')}"
        assert digits == 1 + len(varint(size)), f"over-long Remaining Length: {data.hex(' ')}"
        found.append(data[:end])
        data = data[end:]
    return found


def take(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Remove the complete packets from the start of `buffer`. Return the first byte and the body of each packet."""
    found = []
    start, end = 0, len(buffer)
    while end - start >= 2:
        pos, size, shift = start + 1, 0, 0
        while pos < end:
            byte = buffer[pos]
            pos += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        else:
            break
        if end - pos < size:
            break
        found.append((buffer[start], bytes(buffer[pos : pos + size])))
        start = pos + size
    del buffer[:start]
    return found


def first_frame(data: bytes | bytearray) -> bytes:
    """Return the packet at the beginning of `data`, with its header. Return no bytes if the packet is incomplete."""
    size = 0
    for digits, byte in enumerate(data[1:5], 1):
        size |= (byte & 127) << 7 * (digits - 1)
        if byte < 128:
            end = 1 + digits + size
            return bytes(data[:end]) if len(data) >= end else b""
    return b""


def take_frames(buffer: bytearray) -> list[bytes]:
    """Remove the complete packets from the start of `buffer`. Return them with their headers."""
    found: list[bytes] = []
    while first := first_frame(buffer):
        found.append(first)
        del buffer[: len(first)]
    return found


def body(frame: bytes) -> bytes:
    """Return a packet without its fixed header."""
    digits = 1
    while frame[digits] >= 128:
        digits += 1
    return frame[digits + 1 :]


_SIZES = {
    0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1, 0x27: 4,
    0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


def split_section(data: bytes) -> tuple[list[bytes], bytes]:
    """Split the property section off `data`. Return its encoded properties and the remaining bytes."""
    size, pos = _varint_at(data, 0)
    end = pos + size
    found = []
    while pos < end:
        number, stop = data[pos], pos + 1
        if number == 0x0B:
            _, stop = _varint_at(data, stop)
        elif number in _SIZES:
            stop += _SIZES[number]
        else:
            for _ in range(2 if number == 0x26 else 1):
                stop += 2 + int.from_bytes(data[stop : stop + 2], "big")
        found.append(data[pos:stop])
        pos = stop
    assert pos == end <= len(data), f"wrong property length: {data.hex(' ')}"
    return found, data[end:]


def _varint_at(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, pos


def split_publish(frame: bytes, level: int = 5) -> tuple[int, bytes, int, list[bytes], bytes]:
    """Split a PUBLISH into (first byte, topic, packet id or 0, encoded properties, payload)."""
    assert frame[0] >> 4 == 3, f"not a PUBLISH: {frame.hex(' ')}"
    rest = body(frame)
    size = int.from_bytes(rest[:2], "big")
    topic, rest = rest[2 : 2 + size], rest[2 + size :]
    packet_id = 0
    if frame[0] & 6:
        packet_id, rest = int.from_bytes(rest[:2], "big"), rest[2:]
    properties: list[bytes] = []
    if level == 5:
        properties, rest = split_section(rest)
    return frame[0], topic, packet_id, properties, rest
