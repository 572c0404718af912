"""Pass messages, reason codes and the end of the connection to a plugin client.

The plugin's functions are called in separate turns, never in the middle of a fan-out. Until the next turn, messages
wait in `inbox` and reason codes in `results`.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hookmq.broker.connection import ClientConnection, Table
from hookmq.broker.connection_state import Phase
from hookmq.broker.delivery.completion import acknowledged
from hookmq.broker.plugin_batch import BatchPart
from hookmq.broker.plugin_delivery import PlainDelivery, PluginDelivery, QueuedDelivery
from hookmq.broker.state import BrokerState
from hookmq.hooks.instance import KeptState
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.errors import PluginError
from hookmq.model.events import Direction, DisconnectReason, DropReason
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.inflight import Delivery

_OPEN: Final = Phase.OPEN  # compiled code reads a module's own constants directly
_HANDED_OUT: Final = 256
"""Maximum number of messages passed to `on_message` in one turn. The rest wait for the next turn, so that no client
delays others.
"""


class NoWire:
    """A plugin client's transport, which does nothing."""

    def write(self, data: bytes) -> None:
        """Do nothing. The client's packets are passed as objects."""

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing. `ClientConnection.reading` controls whether pending packets are handled."""

    def resume_reading(self) -> None:
        """Do nothing."""


_NO_WIRE: Final = NoWire()


class Waiting:
    """Sets the result of `promise` to a reason code, or to a PluginError if the client ends first."""

    __slots__ = ("promise",)

    def __init__(self, promise: Promise) -> None:
        self.promise = promise


Done = Callable[[ReasonCode], None] | Waiting | BatchPart


class PluginMailbox(ClientConnection):
    """The part of a plugin client's connection that calls the plugin. `plugin` is the plugin id, and `owner` the
    plugin's state.
    """

    __slots__ = (
        "arrived", "arrived_at", "freed", "full", "inbox", "inbox_bytes", "lost", "on_message", "on_messages", "on_over",
        "over", "owner", "plugin", "reader", "results", "scheduled", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        state: BrokerState,
        plugin: str,
        owner: KeptState,
        peer: Peer,
        scope: Scope,
        table: Table,
        on_end: Callable[[ClientConnection, DisconnectReason], None],
    ) -> None:
        super().__init__(state, _NO_WIRE, peer, scope, table, on_end)
        self.in_process = True
        self.plugin = plugin
        self.owner = owner
        self.inbox: deque[PluginDelivery] = deque()
        """Messages waiting for the client to read them."""
        self.arrived: list[PluginDelivery] = []
        """Messages that arrived since the last turn. They follow those in `inbox`."""
        self.arrived_at = 0.0
        """When the first plain message of `arrived` was received; 0 if there is none."""
        self.inbox_bytes = 0
        self.results: list[tuple[Done, ReasonCode]] = []
        """Reason codes that the plugin has yet to receive."""
        self.lost: list[Done] = []
        """The callbacks that were still awaiting a reason code when the connection ended."""
        self.on_message: Callable[[Any], None] | None = None
        self.on_messages: Callable[[list[Any]], None] | None = None
        self.on_over: Callable[[DisconnectReason], None] | None = None
        self.over: DisconnectReason | None = None
        """How the connection ended."""
        self.reader: Promise | None = None
        """The promise that a coroutine awaits until the next message arrives, or None."""
        self.scheduled = False
        self.stopped = False
        """Whether the client has paused."""
        self.full = False
        """Whether `inbox` holds more than the client may leave unread."""
        self.freed = False
        """Whether acknowledgements have made room in the window."""

    def take_turn(self) -> None:
        """Handle the client's packets, and call the plugin's functions."""
        raise NotImplementedError

    def only_on_loop(self, name: str) -> None:
        """Raise PluginError if called in a thread."""
        if not self.state.runtime.on_loop():
            raise self.error(f"{name} is for the event loop, and this is a thread")

    def error(self, text: str) -> PluginError:
        """Return the error for an invalid call."""
        return PluginError(self.plugin, text)

    def schedule(self) -> None:
        """Run `take_turn` in the next turn."""
        if not self.scheduled:
            self.scheduled = True
            self.state.plugin_turns.add(self)

    def set_stopped(self, stopped: bool) -> None:
        """Deliver no messages while `stopped` is true."""
        self.stopped = stopped
        self._update_writable()
        if not stopped:
            self.schedule()

    def take_acknowledgement(self, delivery: Delivery, code: int) -> None:
        """Complete a QoS 1 or 2 delivery. QoS 2 needs no PUBREC or PUBREL, because no packet can be lost."""
        session = self.session
        if self.phase is not Phase.OPEN or session is None:
            return
        number = delivery.packet_id
        if session.inflight.get(number) is not delivery:
            return
        acknowledged(self.state, session, number, code)
        if session.queued or session.resend or session.backlog or session.groups:
            self.freed = True
            self.schedule()

    def free(self, number: int, code: int, delivery: PlainDelivery) -> None:
        """Free the packet id of a plain delivery that the client has acknowledged. The broker keeps nothing else about
        the delivery.
        """
        session = self.session
        if self.phase is not _OPEN or session is None:
            return
        if session.inflight.pop(number, None) is None:
            return
        if code >= 0x80:
            self.state.dropped(
                delivery.message, session.client, DropReason.REFUSED, Direction.OUT, f"0x{code:02X}"
            )
        if session.queued or session.resend or session.backlog or session.groups:
            self.freed = True
            if not self.scheduled:
                self.schedule()

    def arrive_plain(
        self, sender: ClientInfo, topic: str, payload: bytes, message_qos: int, properties: Properties, qos: int,
        number: int, message: Message | None,
    ) -> None:  # fmt: skip
        """Add a plain message to the inbox. The broker keeps only its packet id."""
        arrived = self.arrived
        if not arrived or self.arrived_at == 0.0:
            self.arrived_at = self.state.arrival()
        at = self.arrived_at
        delivery = PlainDelivery(
            self, sender, topic, payload, message_qos, properties, at, qos, number, message
        )
        arrived.append(delivery)
        self.inbox_bytes += delivery.weight
        if not self.full and self.inbox_bytes > self.state.writes.room:
            self.full = True
            self._update_writable()
        if not self.scheduled:
            self.schedule()

    def arrive(self, delivery: Delivery, dup: bool) -> None:
        """Add a message to the inbox. If an earlier connection of the session received it, complete the delivery
        instead.
        """
        session = self.session
        assert session is not None
        if delivery.released:
            acknowledged(self.state, session, delivery.packet_id, 0)
            return
        message = delivery.outgoing.message
        mount = self.scope.mount_point
        if mount:
            message = message.replace(topic=message.topic.removeprefix(mount))
        queued = QueuedDelivery(self, delivery, message, dup)
        if not self.arrived:
            self.arrived_at = 0.0
        self.arrived.append(queued)
        self.inbox_bytes += queued.weight
        if not self.full and self.inbox_bytes > self.state.writes.room:
            self.full = True
            self._update_writable()
        if not self.scheduled:
            self.schedule()

    def send(self, data: bytes) -> None:
        """Do nothing; see `NoWire.write`."""

    def watch_keep_alive(self) -> None:
        """Cancel the deadline for CONNECT. Plugin clients have no keep alive."""
        self.due.cancel()

    def call_back(self) -> None:
        """Pass the reason codes to the functions waiting for them."""
        results, self.results = self.results, []
        for done, code in results:
            if isinstance(done, BatchPart):
                done.settle(code)
            elif not isinstance(done, Waiting):
                self._call("done", partial(done, code))
            elif not done.promise.done():  # else the caller has stopped waiting
                done.promise.set_result(code)
        lost, self.lost = self.lost, []
        for done in lost:
            if isinstance(done, BatchPart):
                done.settle(ReasonCode.UNSPECIFIED_ERROR)
            elif not isinstance(done, Waiting):
                self._call("done", partial(done, ReasonCode.UNSPECIFIED_ERROR))
            elif not done.promise.done():
                done.promise.set_exception(self.ended())

    def ended(self) -> PluginError:
        """Return the error for a call after the client has ended."""
        over = self.over
        client_id = self.client.client_id if self.client is not None else ""
        why = f": {over.error or over.code.text}" if over is not None else ""
        return self.error(f"the client {client_id!r} has ended{why}")

    def hand_out(self) -> None:
        """Pass messages to the plugin, within the limit for one turn."""
        inbox = self.inbox
        many = self.on_messages
        arrived = self.arrived
        if (
            many is not None
            and arrived
            and len(arrived) <= _HANDED_OUT
            and not (inbox or self.full or self.stopped)
        ):
            # Nearly always: pass on the list itself.
            self.arrived = []
            self.inbox_bytes = 0
            try:
                many(arrived)
            except Exception as error:
                self._blame("on_messages", error)
            return
        if arrived:
            inbox.extend(arrived)
            self.arrived = []
        if many is not None and inbox and not self.stopped:
            taken = [self.next() for _ in range(min(len(inbox), _HANDED_OUT))]
            try:
                many(taken)
            except Exception as error:
                self._blame("on_messages", error)
        left = _HANDED_OUT
        while inbox and not self.stopped:
            call = self.on_message
            if call is None or not left:
                break
            left -= 1
            delivery = self.next()
            try:
                call(delivery)
            except Exception as error:
                self._blame("on_message", error)
        if self.reader is not None and inbox and not self.stopped:
            self._wake()
        elif inbox and not self.stopped and (self.on_message or self.on_messages) is not None:
            self.schedule()

    def next(self) -> PluginDelivery:
        """Remove the next message from the inbox and return it."""
        delivery = self.inbox.popleft()
        self.inbox_bytes -= delivery.weight
        if self.full and self.inbox_bytes * 2 <= self.state.writes.room:
            self.full = False
            self._update_writable()
        return delivery

    def _wake(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _update_writable(self) -> None:
        if self.phase is Phase.CLOSED:
            return
        wanted = not self.stopped and not self.full
        if wanted and not self.writable:
            self.resume_writing()
        elif self.writable and not wanted:
            self.pause_writing()

    def say_over(self, over: DisconnectReason) -> None:
        """Tell the plugin how its client's connection ended."""
        self._wake()
        call, self.on_over = self.on_over, None
        if call is not None:
            self._call("on_end", partial(call, over))

    def _call(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._blame(name, error)

    def _blame(self, name: str, error: Exception) -> None:
        """Count and log a failure of the plugin's function."""
        self.owner.callbacks.failed(f"{name}: {error!r}", cause=error)
