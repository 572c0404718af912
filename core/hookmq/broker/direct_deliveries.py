"""A plugin's deliveries to single clients, without a route and without a record.

    send -> `transmit` -> in flight -> PUBACK, or the end of the connection -> `_ended` -> the plugin, in the next turn

A delivery in flight releases its publisher when it ends for any reason. Its waiter therefore reports the end.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from hookmq.broker.delivery.transmit import (
    first_in_line,
    has_room,
    identifiers_of,
    transmit,
)
from hookmq.broker.state import BrokerState
from hookmq.model.events import DeliveryEnd
from hookmq.model.message import Message
from hookmq.session.inflight import Acknowledgement, Delivery, Outgoing
from hookmq.session.session import Session

Ends = list[tuple[object, DeliveryEnd]]


class DirectWaiter(Acknowledgement):
    """Reports the end of one delivery, when the broker would release the delivery's publisher."""

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
        transmit(state, session, delivery, stored=False)
        state.writes.schedule()
        if delivery.packet_id:
            # Set only now: `transmit` releases publishers when a delivery starts.
            delivery.waiter = DirectWaiter(self, session, delivery, token)
        else:  # a final check has refused it
            self._end(token, DeliveryEnd.DROPPED)
        return True

    def over(self, waiter: DirectWaiter) -> None:
        """Note that a delivery has ended."""
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
