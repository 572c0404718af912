"""A message that a consumer has received."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import paho.mqtt.client as paho

from hookmq_queues_client.connection import Connection, UserProperties, publish_properties
from hookmq_queues_client.errors import AlreadySettled, ConnectionLost, NotAvailable, Refused

_DEAD: Final = "dead-letter-"
_OWN: Final = frozenset(
    {"message-id", "group", "offset", "delivery-count", "source-topic", "settle"}
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a dead letter came from: its `id` in `queue`, the `group`, and the `topic` to which it was published.

    `reason` is the broker's name for the cause, such as ``rejected``. `description` is the reason that the last
    consumer gave, or empty.
    """

    queue: str
    group: str
    id: str
    topic: str
    reason: str
    description: str
    count: int
    time: datetime | None


@dataclass(slots=True, eq=False)
class Message:
    """A message of a queue. Settle each one with `ack`, `nack` or `reject`.

    `id` is ``NAME:OFFSET``. `delivery_count` is 1 for the first delivery to the group. `source_topic` is the topic to
    which the message was published. `headers` holds the publisher's user properties; if a name repeats, the last value
    counts. `explicit` is True if the group settles by `$ack`, so that `nack` and `reject` are available.
    """

    id: str
    queue: str
    group: str
    offset: int
    delivery_count: int
    source_topic: str
    payload: bytes
    headers: Mapping[str, str]
    dead_letter: DeadLetter | None
    explicit: bool
    _connection: Connection = field(repr=False)
    _packet_id: int = field(repr=False)
    _settled: bool = field(default=False, repr=False)
    _acknowledged: bool = field(default=False, repr=False)

    @property
    def settled(self) -> bool:
        """Return whether `ack`, `nack` or `reject` was called and was not refused."""
        return self._settled

    @property
    def lost(self) -> bool:
        """Return whether the connection that delivered the message has ended. If so, the broker delivers the message
        again.
        """
        return not self._connection.is_open

    async def ack(self) -> bool:
        """Settle the message as processed. Return False if the connection that delivered it has ended; the broker then
        delivers it again.

        In a group that settles by PUBACK, True means that PUBACK was sent. Otherwise, it means that the broker has
        committed the settlement. Raises AlreadySettled. Raises Refused if the broker does not accept the settlement, for
        example because another consumer got the message after the visibility timeout.
        """
        return await self._settle("ack")

    async def nack(self, *, delay: float | None = None, reason: str | None = None) -> bool:
        """Give the message back. The broker redelivers it after `delay` seconds, or after the group's backoff. Returns
        and raises the same as `ack`; also raises NotAvailable if the group settles by PUBACK, and ValueError for an
        invalid argument.
        """
        if delay is not None and delay < 0:
            raise ValueError(f"delay must be at least 0 seconds, not {delay}")
        own = [] if delay is None else [("delay", f"{delay:.3f}")]
        return await self._settle("nack", own if reason is None else [*own, ("reason", reason)])

    async def reject(self, *, reason: str | None = None) -> bool:
        """Settle the message as one that cannot be processed: it becomes a dead letter at once. Returns and raises the
        same as `nack`.
        """
        return await self._settle("reject", [] if reason is None else [("reason", reason)])

    async def _settle(self, verb: str, more: UserProperties = ()) -> bool:
        if self._settled:
            raise AlreadySettled(f"message {self.id} was settled already")
        if self.explicit:
            return await self._publish_settlement(verb, more)
        if verb != "ack":
            raise NotAvailable(
                f"message {self.id} cannot be given back or rejected, because the group {self.group} settles by PUBACK: "
                "configure it with `settle: explicit`"
            )
        self._settled = True
        return self._connection.ack(self._packet_id)

    async def _publish_settlement(self, verb: str, more: UserProperties) -> bool:
        own = publish_properties((("message-id", self.id), ("group", self.group), *more))
        self._settled = True
        try:
            await self._connection.publish(f"$queue/{self.queue}/${verb}", b"", own)
        except ConnectionLost:
            return False
        except Refused:
            self._settled = False
            raise
        finally:
            # PUBACK settles nothing in this group, but makes room for another message.
            if not self._acknowledged and self._connection.takes_more:
                self._acknowledged = self._connection.ack(self._packet_id)
        return True


def read_message(received: paho.MQTTMessage, connection: Connection) -> Message | None:
    """Return the queue message that arrived on `connection`, or None if it is not from a queue.

    Raises ValueError if a number in its properties is malformed.
    """
    pairs: list[tuple[str, str]] = getattr(received.properties, "UserProperty", [])
    found = dict(pairs)
    id = found.get("message-id", "")
    queue, colon, offset = id.rpartition(":")
    if not colon:
        return None
    return Message(
        id=id,
        queue=queue,
        group=found.get("group", ""),
        offset=int(offset),
        delivery_count=int(found.get("delivery-count", "1")),
        source_topic=found.get("source-topic", received.topic),
        payload=bytes(received.payload),
        headers={k: v for k, v in found.items() if k not in _OWN and not k.startswith(_DEAD)},
        dead_letter=_dead_letter(found),
        explicit=found.get("settle") == "explicit",
        _connection=connection,
        _packet_id=received.mid,
    )


def _dead_letter(found: Mapping[str, str]) -> DeadLetter | None:
    if _DEAD + "id" not in found:
        return None
    value = {
        name: found.get(_DEAD + name, "")
        for name in ("queue", "group", "id", "topic", "reason", "description")
    }
    time = found.get(_DEAD + "time")
    return DeadLetter(
        **value,
        count=int(found.get(_DEAD + "count", "0")),
        time=None if time is None else datetime.fromtimestamp(float(time), UTC),
    )
