"""What the clients know at a given moment, computed from the marks that they recorded before it.

A mark is a JSON list whose first item is its kind. A client records each request before sending it, and each answer
after reading it:

    up NAME CLEAN                      CONNECT is sent
    on NAME                            CONNACK arrived
    asks NAME                          SUBSCRIBE is sent
    subs NAME                          SUBACK arrived
    send N TOPIC QOS ID SIZE RETAIN    PUBLISH of message N is sent
    again N                            message N is sent again
    ack N, rec N, comp N               PUBACK, PUBREC or PUBCOMP for message N arrived
    rel N                              PUBREL for message N is sent
    got NAME N QOS ID                  PUBLISH of message N arrived
    release NAME ID                    PUBREL arrived
    puback NAME ID                     PUBACK is sent
    delay N                            delayed message N, which a plugin keeps as a timer, is sent
    kept N                             PUBACK for delayed message N arrived
    at TIME                            a broker was started at this time
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Sent(NamedTuple):
    """A published message. A `size` of 0 clears the retained message."""

    number: int
    topic: str
    qos: int
    id: int
    size: int
    retain: bool

    @property
    def payload(self) -> bytes:
        """Return the payload: the message's number, padded to `size`."""
        return (b"%d " % self.number).ljust(self.size, b".") if self.size else b""


def number_of(payload: bytes) -> int:
    """Return the number of the message with this payload."""
    return int(payload.split(b" ", 1)[0])


class Reader:
    """What one subscriber knows: the messages it has received and the acknowledgements it has yet to send."""

    def __init__(self) -> None:
        self.clean = False
        self.asked = False
        """Whether CONNECT was sent and its CONNACK has not arrived."""
        self.known = False
        """Whether the broker confirmed the session with CONNACK."""
        self.subscribing = 0
        self.subscribed = 0
        """How many messages had been sent when SUBACK arrived, or -1 before that. `subscribing` is the same for
        SUBSCRIBE.
        """
        self.began = 0
        """How many messages had been acknowledged when CONNECT asked for a new session."""
        self.delivered: list[int] = []
        self.ids: dict[int, int] = {}
        """Numbers of the QoS 2 messages between PUBLISH and PUBREL, by packet id."""
        self.open: dict[int, int] = {}
        """Numbers of the QoS 1 messages that it has not acknowledged, by packet id."""
        self.subscribing = self.subscribed = -1

    def take(self, number: int, qos: int, id: int) -> None:
        """Record a received PUBLISH. Raise AssertionError if it breaks a guarantee."""
        if qos == 2:
            if id in self.ids:
                assert self.ids[id] == number, (
                    f"packet id {id} of message {self.ids[id]} came again with message {number} before PUBREL"
                )
                return
            assert number not in self.delivered, f"message {number} of QoS 2 was delivered twice"
            self.ids[id] = number
        elif qos == 1:
            self.open[id] = number
        self.delivered.append(number)


class Memory:
    """What all clients know."""

    def __init__(self, marks: Iterable[bytes] = ()) -> None:
        self.sent: dict[int, Sent] = {}
        self.acked: set[int] = set()
        """Numbers of the messages for which PUBACK or PUBREC arrived."""
        self.acknowledgements: list[int] = []
        self.released: set[int] = set()
        self.done: set[int] = set()
        """Numbers of the messages for which PUBACK or PUBCOMP, the last acknowledgement, arrived."""
        self.readers: dict[str, Reader] = {}
        self.delayed = 0
        """The number of delayed messages sent. They are numbered from 1."""
        self.kept: set[int] = set()
        """Numbers of the delayed messages that were acknowledged."""
        self.time = 0.0
        for mark in marks:
            self.take(mark)

    def reader(self, name: str) -> Reader:
        """Return a subscriber's record. Create it if there is none."""
        found = self.readers.get(name)
        if found is None:
            found = self.readers[name] = Reader()
        return found

    def take(self, mark: bytes) -> None:
        """Apply another mark."""
        kind, *rest = json.loads(mark)
        getattr(self, f"_{kind}")(*rest)

    def _at(self, time: float) -> None:
        self.time = time

    def _send(self, *values: Any) -> None:
        sent = Sent(*values)
        self.sent[sent.number] = sent

    def _again(self, number: int) -> None:
        pass

    def _ack(self, number: int) -> None:
        self._rec(number)
        self.done.add(number)

    def _rec(self, number: int) -> None:
        self.acked.add(number)
        self.acknowledgements.append(number)

    def _rel(self, number: int) -> None:
        self.released.add(number)

    def _comp(self, number: int) -> None:
        self.done.add(number)

    def _up(self, name: str, clean: bool) -> None:
        reader = self.reader(name)
        reader.asked, reader.clean = True, clean
        if clean:
            reader.began = len(self.acknowledgements)

    def _on(self, name: str) -> None:
        reader = self.reader(name)
        if reader.clean:
            began = reader.began
            reader = self.readers[name] = Reader()
            reader.began = began
        reader.known, reader.asked = True, False

    def _asks(self, name: str) -> None:
        self.reader(name).subscribing = len(self.sent)

    def _subs(self, name: str) -> None:
        self.reader(name).subscribed = len(self.sent)

    def _got(self, name: str, number: int, qos: int, id: int) -> None:
        self.reader(name).take(number, qos, id)

    def _puback(self, name: str, id: int) -> None:
        # The message may have arrived with another id before, on a connection that was lost.
        reader = self.reader(name)
        number = reader.open.pop(id, None)
        reader.open = {id: one for id, one in reader.open.items() if one != number}

    def _delay(self, number: int) -> None:
        self.delayed = number

    def _kept(self, number: int) -> None:
        self.kept.add(number)

    def _release(self, name: str, id: int) -> None:
        self.reader(name).ids.pop(id, None)


def mark(*values: Any) -> bytes:
    """Return a mark as it is stored in the recording."""
    return json.dumps(values, separators=(",", ":")).encode()
