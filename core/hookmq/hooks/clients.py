"""Plugin clients: clients that a plugin opens in the broker's process, for devices that do not speak MQTT."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from hookmq.hooks.verdicts import Accept
from hookmq.model.client import ClientInfo, Peer
from hookmq.model.events import DisconnectReason
from hookmq.model.message import Message, Will
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The request to connect a plugin client, with the fields of an MQTT 5 CONNECT. See `BrokerHandle.connect`.

    - `client_id`: empty to let the broker assign one.
    - `session_expiry`: how many seconds the session outlives the client; 0xFFFFFFFF means forever.
    - `will`: published if the client ends without `ClientHandle.disconnect`.
    - `receive_maximum`: maximum number of unacknowledged QoS 1 and 2 messages, from 1 to 65535. ``session.max_inflight``
      also limits it.
    - `listener`: the listener name that plugins and logs see; if empty, the plugin id. Plugins that set ``listeners:``
      are called only if it contains this name.
    - `mount_point`: prefix of all topics and filters of the client, as for a listener.
    - `peer`: the address that plugins and logs see, or None for a client without an address.
    - `properties`: further CONNECT properties, such as `user_property` and `maximum_packet_size`.
    - `accept`: if given, the plugin itself has authenticated the client. The client is accepted with this verdict, and no
      plugin is called with `on_connect`. All other hooks and limits apply.
    """

    client_id: str = ""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    clean_start: bool = True
    session_expiry: int = 0
    will: Will | None = None
    receive_maximum: int = 65535
    listener: str = ""
    mount_point: str = ""
    peer: Peer | None = None
    properties: Properties = EMPTY
    accept: Accept | None = None


class Delivery(Protocol):
    """A message for a plugin client."""

    @property
    def topic(self) -> str:
        """The topic as the client sees it: without the mount point. Reading it costs less than `message`."""

    @property
    def payload(self) -> bytes:
        """The payload. Reading it costs less than `message`, which may not have been created yet."""

    @property
    def message(self) -> Message:
        """The message, with its topic as the client sees it: without the mount point."""

    @property
    def qos(self) -> int:
        """The QoS of the delivery: the lower of the message's and the subscription's."""

    @property
    def retain(self) -> bool:
        """The RETAIN flag of the delivery: whether the message was already retained when the client subscribed."""

    @property
    def dup(self) -> bool:
        """Whether the message may have been delivered before."""

    @property
    def identifiers(self) -> tuple[int, ...]:
        """The identifiers of the matching subscriptions."""

    def acknowledge(self, code: ReasonCode = ReasonCode.SUCCESS) -> None:
        """Acknowledge a QoS 1 or 2 message, so that the broker forgets it. Returns at once.

        The acknowledgement is part of this turn's batch: it is committed together with all other changes that the plugin
        makes in this turn. With a `code` of 0x80 or above, the client refuses the message, which is counted as dropped.

        Does nothing at QoS 0, if called again, or once the client has ended. Raises PluginError in a thread.
        """


class ClientHandle(Protocol):
    """A plugin client, as returned by `BrokerHandle.connect`.

    To the broker and to all plugins, it is an MQTT 5 client without keep alive. It needs no bytes and no socket. Call
    its methods only on the event loop: every method raises PluginError in a thread, and after the client has ended.

    The client ends if you disconnect it, if another client takes over its client id, if a plugin or the broker
    disconnects it, or if the broker stops. If its plugin is disabled, removed or replaced by a reload, the client ends
    as if its network had failed, and its will is published.
    """

    on_message: Callable[[Delivery], None] | None
    """Called with each message, in order, in a later turn. Until it is set, messages wait as they do for a client that
    does not read. It must not block. If it raises an exception, the failure is logged and the message is not
    acknowledged.
    """

    on_messages: Callable[[list[Delivery]], None] | None
    """Called like `on_message`, but with all messages of a turn at once, up to 256. This costs less. Acknowledge each
    of them. If it raises an exception, the failure is logged. Set `on_message` or `on_messages`, not both.
    """

    on_end: Callable[[DisconnectReason], None] | None
    """Called once when the client has ended. If the client has already ended when this is set, it is called at once."""

    @property
    def client_id(self) -> str:
        """The client id, which the broker may have assigned."""

    @property
    def session_present(self) -> bool:
        """Whether the client resumed a session."""

    @property
    def info(self) -> ClientInfo:
        """The client as hooks see it."""

    @property
    def connected(self) -> bool:
        """Whether the client is still connected. You may read this after the client has ended."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
    ) -> Awaitable[ReasonCode]:
        """Publish a message. The result is the reason code of its PUBACK or PUBCOMP. It is available when that packet
        would be sent, after the commit. For QoS 0, it is available once the message is routed. The message is sent even
        if nothing awaits the result.

        Codes of 0x80 and above are refusals. Awaiting raises PluginError if the client ends first: the message may or
        may not have been published. Raises PluginError for an invalid message, such as one that exceeds
        ``broker.max_packet_size``, and if more than ``broker.max_held_inbound_bytes`` are waiting to be published.
        """

    def publish_later(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = EMPTY,
        done: Callable[[ReasonCode], None] | None = None,
    ) -> None:
        """Publish like `publish`, but without returning an awaitable, which costs less. `done` is called with the reason
        code in a later turn, or with UNSPECIFIED_ERROR if the client ends first. Raises PluginError like `publish`.
        """

    def publish_many(
        self,
        messages: Iterable[
            tuple[str, bytes]
            | tuple[str, bytes, int]
            | tuple[str, bytes, int, bool]
            | tuple[str, bytes, int, bool, Properties]
        ],
    ) -> Awaitable[list[ReasonCode]]:
        """Publish many messages in order. This costs less than calling `publish` for each of them. Each message is a
        tuple of that method's arguments: topic, payload, and optionally QoS, retain and properties.

        The result is a list with a reason code for each message, in order. It is available once all codes are, and each
        code has the same meaning as for `publish`. If the client ends first, messages without an acknowledgement get
        UNSPECIFIED_ERROR: they may or may not have been published. Awaiting does not raise an error.

        All messages are checked before the first is published. Raises PluginError, and publishes nothing, if a message is
        invalid or if ``broker.max_held_inbound_bytes`` would be exceeded. The error names the index of an invalid
        message.
        """

    def subscribe(
        self,
        filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
    ) -> Awaitable[ReasonCode]:
        """Subscribe, and return the code of the SUBACK: the granted QoS, or a refusal of 0x80 or above.

        Awaiting raises PluginError if the client ends first. Raises PluginError for an argument that is out of range.
        """

    def unsubscribe(self, filter: str) -> Awaitable[ReasonCode]:
        """Unsubscribe, and return the code of the UNSUBACK: SUCCESS or NO_SUBSCRIPTION_EXISTED."""

    def messages(self) -> AsyncIterator[Delivery]:
        """Iterate over the messages, as an alternative to `on_message`: ``async for delivery in client.messages()``.
        The loop ends when the client ends. The number of waiting messages is limited, as for a client that reads
        slowly.
        """

    def acknowledge_many(
        self, deliveries: Iterable[Delivery], code: ReasonCode = ReasonCode.SUCCESS
    ) -> None:
        """Acknowledge messages of this client in order. This costs less than calling `Delivery.acknowledge` for each of
        them. Skips QoS 0 messages.

        If any of the messages was not delivered to this client, raises PluginError and acknowledges none of them.
        """

    def pause(self) -> None:
        """Stop receiving messages until `resume` is called. The broker queues them, within the limits of ``session:``."""

    def resume(self) -> None:
        """Start receiving messages again."""

    def disconnect(
        self,
        code: ReasonCode = ReasonCode.SUCCESS,
        *,
        will: bool = False,
        session_expiry: int | None = None,
    ) -> None:
        """Disconnect after all messages published earlier have been sent. Returns at once.

        The will is discarded if `code` is SUCCESS, unless `will` is true. `session_expiry` changes the session expiry.
        Does nothing if the client has ended.
        """
