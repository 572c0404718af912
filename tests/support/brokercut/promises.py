"""The guarantees that a broker must keep after a power cut.

Each client reconnects with the knowledge that it had at the time of the cut, continues its session, and checks the
guarantees. A violation raises AssertionError with a description.
"""

from collections.abc import Callable
from typing import Final

import mqttbytes as m
from brokercut.lines import kind, packet_id, reason
from brokercut.load import FILTERS, KEPT, RETAINED, publish
from brokercut.memory import Memory, Reader, Sent, number_of
from byteclient import ByteClient

Open = Callable[[], ByteClient]
END: Final = 1_000_000
"""Messages with this number or a higher one mark the end of a queue."""
_NOT_FOUND: Final = 0x92


class Visit:
    """Reconnects all clients to a broker that was started on the data left by a power cut."""

    def __init__(self, memory: Memory, open: Open) -> None:
        self.memory = memory
        self.open = open

    def check(self) -> list[str]:
        """Reconnect all clients and assert that every guarantee made before the cut is kept.

        Return the names of the subscribers that received and acknowledged their whole queue.
        """
        self._retained()
        if not self.memory.readers or not self._sender():
            return []
        return [name for name in ("reader", "online", "anew") if self._reader(name)]

    def connect(self, name: str, clean: bool = False) -> tuple[ByteClient, bool]:
        """Connect. Return the connection, and whether the broker still has the client's session."""
        line = self.open()
        line.send(m.connect(name, clean=clean, properties=KEPT))
        frame = line.frame()
        assert kind(frame) == 2, f"not CONNACK: {frame.hex(' ')}"
        present, code = m.body(frame)[:2]
        assert code == 0, f"CONNACK 0x{code:02X} for {name}"
        return line, bool(present)

    # --- the publisher -----------------------------------------------------------------------------------------------

    def _sender(self) -> bool:
        """Let the publisher finish its in-flight messages and then publish the end marks. Return False if there was no
        publisher.
        """
        memory = self.memory
        sender = memory.readers.get("sender")
        if sender is None:
            return False
        line, present = self.connect("sender", clean=not sender.known)
        assert present or not sender.known, "the publisher's session is gone"
        waiting: dict[int, Sent] = {}
        for sent in memory.sent.values():
            if sent.number in memory.done:
                continue
            waiting[sent.id] = sent
            if sent.number in memory.acked:
                line.send(m.pubrel(sent.id))
            else:
                line.send(publish(sent, dup=True))
        self._finish(line, waiting)
        # Order is kept per topic and QoS [MQTT-4.6.0-6], so each queue needs an end mark for both.
        ends = {n: Sent(END + n, f"k/{n}", n, n, 20, False) for n in (1, 2)}
        for sent in ends.values():
            line.send(publish(sent))
        self._finish(line, ends)
        line.close()
        return True

    def _finish(self, line: ByteClient, waiting: dict[int, Sent]) -> None:
        acked = {id for id, sent in waiting.items() if sent.number in self.memory.acked}
        while waiting:
            frame = line.frame()
            id, code, type = packet_id(frame), reason(frame), kind(frame)
            sent = waiting[id]
            # The broker may have processed the first PUBREL before the cut. Otherwise, it still knows the id.
            maybe = type == 7 and code == _NOT_FOUND and sent.number in self.memory.released
            assert code < 0x80 or maybe, (
                f"packet type {type} with reason 0x{code:02X} for message {sent.number} of QoS {sent.qos}"
                + (", which was acknowledged before the cut" if id in acked else "")
            )
            if type == 5:
                line.send(m.pubrel(id))
            else:
                assert type == (4 if sent.qos == 1 else 7), f"{frame.hex(' ')} for {sent}"
                del waiting[id]

    # --- subscribers -------------------------------------------------------------------------------------------------

    def _reader(self, name: str) -> bool:
        """Let a subscriber read its queue up to the end mark. Return False if the subscriber cannot know what its queue
        should contain.
        """
        reader = self.memory.readers.get(name)
        if reader is None or not (reader.known or reader.asked):
            return False
        line, present = self.connect(name)
        assert present or not reader.known or reader.asked, f"the session of {name} is gone"
        if reader.subscribed < 0 or reader.asked:
            line.close()
            return False
        filter, qos = FILTERS[name]
        self._read(line, reader, filter, qos)
        line.close()
        self._compare(name, reader, filter)
        return True

    def _read(self, line: ByteClient, reader: Reader, filter: str, qos: int) -> None:
        ends = {END + 2} if filter == "k/#" else {END + 1}
        repeated = set(reader.open.values())
        while ends or reader.ids:
            try:
                frame = line.frame()
            except AssertionError as error:
                missing = f"ids without PUBREL: {reader.ids}" if reader.ids else ""
                raise AssertionError(
                    f"{error}; {len(reader.delivered)} messages came, {missing}"
                ) from error
            type = kind(frame)
            if type == 3:
                first, _, id, _, payload = m.split_publish(frame)
                level, number = first >> 1 & 3, number_of(payload)
                sent = self.memory.sent.get(number)
                if sent is not None:
                    assert payload == sent.payload, f"message {number} has other bytes"
                    assert level == min(sent.qos, qos), f"message {number} came with QoS {level}"
                reader.take(number, level, id)
                repeated.discard(number)
                ends.discard(number)
                line.send(m.puback(id) if level == 1 else m.pubrec(id))
            elif type == 6:
                reader.ids.pop(packet_id(frame), None)
                line.send(m.pubcomp(packet_id(frame)))
        assert not repeated, f"not sent again although not acknowledged: {sorted(repeated)}"

    def _compare(self, name: str, reader: Reader, filter: str) -> None:
        memory = self.memory
        delivered = [number for number in reader.delivered if 0 < number < END]
        came = set(delivered)
        strange = came - memory.sent.keys()
        assert not strange, f"{name} got what nobody sent: {sorted(strange)}"
        topics = ("k/1", "k/2") if filter == "k/#" else (filter,)
        for topic in topics:
            owed = {
                sent.number
                for sent in memory.sent.values()
                if sent.topic == topic and sent.number > reader.subscribed
            }
            lost = owed - came
            assert not lost, (
                f"{name} did not get {len(lost)} messages on {topic}, "
                f"{len(lost & memory.acked)} of them acknowledged before the cut: {sorted(lost)[:8]}"
            )
            firsts = list(
                dict.fromkeys(one for one in delivered if memory.sent[one].topic == topic)
            )
            assert firsts == sorted(firsts), f"{name} got {topic} out of order: {firsts}"
        before = set(memory.acknowledgements[: reader.began]) & came
        assert not before, f"{name} began anew and got what was before: {sorted(before)[:8]}"

    # --- retained messages -------------------------------------------------------------------------------------------

    def _retained(self) -> None:
        line, _ = self.connect("looking", clean=True)
        line.send(m.publish("end", b"%d end" % END, 1, 1, retain=True))
        while kind(line.frame()) != 4:
            pass
        for number in range(RETAINED):
            found = self._retained_at(line, f"r/{number}")
            history = [
                0,
                *(s.number for s in self.memory.sent.values() if s.topic == f"r/{number}"),
            ]
            acked = max((one for one in history if one in self.memory.acked), default=0)
            possible = history[history.index(acked) :]
            values = {
                one if one and self.memory.sent[one].size else 0 for one in possible
            }  # 0: nothing retained
            assert found in values, (
                f"r/{number} holds message {found}; {acked} was acknowledged last, then came {possible[1:]}"
            )
        line.close()

    def _retained_at(self, line: ByteClient, topic: str) -> int:
        """Return the number of the retained message on `topic`, or 0 if there is none. The broker then sends the message
        retained on ``end``, which ends the wait.
        """
        line.send(m.subscribe(7, (topic, 0), ("end", 0)))
        found = 0
        while True:
            frame = line.frame()
            if kind(frame) != 3:
                continue
            _, name, _, _, payload = m.split_publish(frame)
            if name == b"end":
                return found
            found = number_of(payload)
            assert payload == self.memory.sent[found].payload, f"{topic} has other bytes"


def wills(line: ByteClient) -> None:
    """Assert that the wills of clients that did not return reach a subscriber once their delay has passed."""
    frame = line.frame()
    assert kind(frame) == 3, f"not a will: {frame.hex(' ')}"
    _, topic, _, _, payload = m.split_publish(frame)
    assert (topic, payload) == (b"k/will", b"0 will")
