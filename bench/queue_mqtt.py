"""Queue producers and consumers for MQTT 5."""

from __future__ import annotations

import struct

from .durable_load import Void
from .queue_client import QUEUE, SIZE, TAIL, connect, exactly


class _Mqtt:
    def __init__(self, port: int, name: str, level: int) -> None:
        self.level = level
        self.socket = connect(port)
        # MQTT 5: a Receive Maximum is not needed, because the queue's prefetch is lower.
        properties = b"\0" if level == 5 else b""
        head = b"\0\4MQTT" + bytes((level, 2, 0, 0)) + properties
        self.send(0x10, head + _mqtt_text(name))
        self.expect(0x20, at=1)

    def send(self, first: int, body: bytes) -> None:
        self.socket.sendall(bytes((first, len(body))) + body)

    def expect(self, first: int, at: int) -> None:
        head = exactly(self.socket, 2)
        body = exactly(self.socket, head[1])
        if head[0] != first or body[at] >= 0x80:
            raise Void(f"the server answered {(head + body).hex(' ')}")


def _mqtt_text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


class MqttProducer(_Mqtt):
    """Publishes at QoS 1."""

    def __init__(self, port: int, number: int, level: int = 5) -> None:
        super().__init__(port, f"producer-{number}", level)
        self.confirmed = 0
        self._left = b""
        self._topic = _mqtt_text(f"$queue/{QUEUE}")
        gap = b"\0" if level == 5 else b""
        size = len(self._topic) + 2 + len(gap) + SIZE
        self._head = bytes((0x32, size & 127 | 128, size >> 7)) + self._topic
        self._form = struct.Struct(f">{len(self._head)}sH{len(gap)}sQ{len(TAIL)}s")
        self._gap = gap

    def messages(self, first: int, count: int) -> bytes:
        """Return PUBLISH packets."""
        pack, head, gap = self._form.pack, self._head, self._gap
        return b"".join(
            [pack(head, (first + i) % 65535 + 1, gap, first + i, TAIL) for i in range(count)]
        )

    def read(self, data: bytes) -> None:
        """Count PUBACK packets without a reason code."""
        data = self._left + data
        count = len(data) >> 2
        whole = count << 2
        if data[0:whole:4] != b"\x40" * count or data[1:whole:4] != b"\x02" * count:
            raise Void(f"not only successful PUBACK packets: {data[:32].hex(' ')}")
        self._left = data[whole:]
        self.confirmed += count


class MqttConsumer(_Mqtt):
    """Subscribes to the queue at QoS 1."""

    def __init__(self, port: int, number: int, level: int = 5) -> None:
        super().__init__(port, f"consumer-{number}", level)
        self._left = b""

    def start(self) -> bytes:
        """Return a SUBSCRIBE packet. Its SUBACK is read with the messages."""
        body = b"\0\1" + (b"\0" if self.level == 5 else b"") + _mqtt_text(f"$queue/{QUEUE}") + b"\1"
        return bytes((0x82, len(body))) + body

    def read(self, data: bytes) -> tuple[list[int], bytes]:
        """Return the message numbers and a PUBACK for each message."""
        data = self._left + data
        numbers: list[int] = []
        answers: list[bytes] = []
        at, end = 0, len(data)
        while at + 3 <= end:
            size, body = data[at + 1], at + 2
            if size > 127:
                size, body = (size & 127) + (data[at + 2] << 7), at + 3
            after = body + size
            if after > end:
                break
            first = data[at]
            if first & 0xF6 == 0x32:
                stop = body + 2 + (data[body] << 8) + data[body + 1]
                answers.append(data[stop : stop + 2])
                numbers.append(int.from_bytes(data[after - SIZE : after - SIZE + 8], "big"))
            elif first != 0x90 or data[after - 1] >= 0x80:
                raise Void(f"a packet that begins {data[at : at + 16].hex(' ')}")
            at = after
        self._left = data[at:]
        return numbers, b"\x40\x02" + b"\x40\x02".join(answers) if answers else b""
