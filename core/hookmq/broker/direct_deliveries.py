"""A plugin's deliveries to single clients. They use no route and are not recorded.

    send -> `transmit` -> in flight -> PUBACK, or the end of the connection -> `_ended` -> the plugin, in the next turn

When a delivery in flight ends, for whatever reason, it releases its publisher. Here, a `DirectWaiter` takes the
publisher's place and reports the end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hookmq.broker.delivery.transmit import (
    first_in_line,
    has_room,
    identifiers_of,
    transmit,
)
from hookmq.broker.state import BrokerState
from hookmq.model.events import DeliveryEnd, Direction, DropReason
from hookmq.model.message import Message, make_message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode_publish_parts
from hookmq.mqtt.primitives import Reader, encode_varint
from hookmq.mqtt.properties import EMPTY, In
from hookmq.mqtt.property_section import encode_properties, read_properties
from hookmq.session.inflight import (
    PACKET_IDS,
    Acknowledgement,
    Delivery,
    Outgoing,
    take_packet_id,
)
from hookmq.session.session import Session

_EMPTY: Final = EMPTY  # compiled code reads a module's own constants directly
Ends = list[tuple[object, DeliveryEnd]]
Run = Sequence[tuple[Message, bytes, Any]]
"""Messages, each with encoded user properties for MQTT 5 clients and the plugin's token."""


class DirectWaiter(Acknowledgement):
    """Takes the publisher's place for one delivery, and reports when the delivery ends."""

    __slots__ = ("delivery", "sender", "session", "token")

    def __init__(
        self, sender: "DirectSender", session: Session, delivery: Delivery, token: Any
    ) -> None:
        super().__init__(_nothing)
        self.sender = sender
        self.session = session
        self.delivery = delivery
        self.token = token

    def met(self) -> None:
        """Report the end of the delivery."""
        self.sender.over(self)


class DirectSender:
    """Sends one plugin's messages; see `hookmq.hooks.direct_deliveries.DirectDeliveries`."""

    __slots__ = ("_call", "_ended", "_failed", "_state")

    def __init__(
        self,
        state: BrokerState,
        call: Callable[[Ends], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._state = state
        self._call = call
        self._failed = failed
        self._ended: Ends = []

    def send(self, client_id: str, filter: str, message: Message, token: Any) -> bool:
        """Send a message at QoS 1 to one subscription of an online client. Return False if it cannot be sent now."""
        state = self._state
        session = state.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        subscription = session.subscriptions.get(filter)
        if subscription is None or not subscription.qos:
            return False
        if not first_in_line(session) or not has_room(session):
            return False
        delivery = Delivery(Outgoing(message), 1, False, identifiers_of(subscription), subscription)
        self._transmit(session, delivery, token)
        state.writes.schedule()
        return True

    def _transmit(self, session: Session, delivery: Delivery, token: Any) -> None:
        transmit(self._state, session, delivery, stored=False)
        if delivery.packet_id:
            # Set only now: `transmit` releases publishers when a delivery starts.
            delivery.waiter = DirectWaiter(self, session, delivery, token)
        else:  # a final check has refused it
            self._end(token, DeliveryEnd.DROPPED)

    def send_run(self, client_id: str, filter: str, run: Run) -> int:
        """Send messages in order at QoS 1 to one subscription of an online client. Return how many were sent."""
        state = self._state
        session = state.sessions.get(client_id)
        if session is None or session.connection is None:
            return 0
        subscription = session.subscriptions.get(filter)
        if subscription is None or not subscription.qos or not first_in_line(session):
            return 0
        plain = self._is_plain(session, subscription)
        five = session.client.version == 5
        sent = 0
        for message, added, token in run:
            if not has_room(session):
                break
            if plain and message.expires_at is None:
                self._write(session, subscription, message, added, five, token)
            else:
                if five and added:
                    message = _with_properties(message, added)
                delivery = Delivery(
                    Outgoing(message), 1, False, identifiers_of(subscription), subscription
                )
                self._transmit(session, delivery, token)
            sent += 1
        state.writes.schedule()
        return sent

    def _is_plain(self, session: Session, subscription: Subscription) -> bool:
        """Return whether `_write` would send the client the same bytes as `transmit`."""
        state = self._state
        connection = session.connection
        return (
            connection is not None
            and not connection.delivers
            and not connection.in_process
            and connection.delivery_limit is None
            and not connection.alias_maximum
            and subscription.identifier is None
            and not session.client.scope.mount_point
            and not state.settings.session.retry_interval
            and not state.writes.sampling
            and "on_delivered" not in state.observed
        )

    def _write(
        self,
        session: Session,
        subscription: Subscription,
        message: Message,
        added: bytes,
        five: bool,
        token: Any,
    ) -> None:
        """Send a message that needs no change for a plugin, alias, mount point or expiry."""
        state = self._state
        section: bytes | None = None
        if five:
            section = _section(message, added)
        head, tail = encode_publish_parts(
            message.topic.encode(), message.payload, 1, False, False, section
        )
        size = len(head) + len(tail) + 2
        state.work += 1 + (size >> 12)
        connection = session.connection
        if connection is not None and size > connection.max_packet_size:
            state.dropped(message, session.client, DropReason.TOO_LARGE, Direction.OUT)
            self._end(token, DeliveryEnd.DROPPED)
            return
        state.metrics.messages_delivered += 1
        delivery = Delivery(Outgoing(message), 1, False, (), subscription)
        number = take_packet_id(session.inflight, session.last_packet_id)
        session.last_packet_id = number
        delivery.packet_id = number
        session.inflight[number] = delivery
        delivery.waiter = DirectWaiter(self, session, delivery, token)
        session.out += (head, PACKET_IDS[number], tail)
        state.writes.put(session, size)

    def over(self, waiter: DirectWaiter) -> None:
        """Record that a delivery has ended."""
        session, delivery = waiter.session, waiter.delivery
        number = delivery.packet_id
        if session.inflight.get(number) is delivery:
            # The connection or the session has ended: the plugin decides what becomes of the message.
            del session.inflight[number]
            self._end(waiter.token, DeliveryEnd.LOST)
        else:
            self._end(waiter.token, DeliveryEnd.ACKNOWLEDGED)

    def _end(self, token: Any, end: DeliveryEnd) -> None:
        ended = self._ended
        if not ended:
            self._state.runtime.call_soon(self._report)
        ended.append((token, end))

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        self._state.guarded(partial(self._tell, ended))
        self._state.writes.schedule()

    def _tell(self, ended: Ends) -> None:
        try:
            self._call(ended)
        except Exception as error:
            self._failed(error)


def _nothing() -> None:
    pass


def _section(message: Message, added: bytes) -> bytes:
    """Return a message's encoded properties, followed by `added`."""
    if message.properties is not _EMPTY:
        own = encode_properties(message.properties)
        start = 1
        while own[start - 1] > 127:
            start += 1
        added = own[start:] + added
    return encode_varint(len(added)) + added


def _with_properties(message: Message, added: bytes) -> Message:
    """Return a copy of a message with the added user properties, to show to plugins."""
    section = encode_varint(len(added)) + added
    more = read_properties(Reader(section), In.PUBLISH, len(added)).user_property or ()
    properties = message.properties
    properties = properties.replace(user_property=(*(properties.user_property or ()), *more))
    return make_message(
        message.topic,
        message.payload,
        1,
        False,
        properties,
        message.sender,
        message.origin,
        message.received_at,
        message.expires_at,
    )
