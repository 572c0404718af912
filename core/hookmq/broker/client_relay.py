"""A network client's bytes while its session may be, or is, on another node of the cluster.

    keep --CONNECT is valid--> hold --Here--> release: the connection reads the bytes that were kept
                                 |
                                 +--Relaying--> start: bytes pass in both directions until either side closes
                                 |
                                 +--Transfer--> transfer: another process of this machine has the socket

The connection hands the bytes over as received. Its phase is DECIDING while they are held, and RELAYED after `start`.
"""

from collections.abc import Callable

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.model.events import DisconnectReason, EndedBy
from hookmq.mqtt.framing import frame
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import Place, Relay, Relaying, SendSocket, Transfer


class ClientRelay:
    """The relay of one connection. It is also the `Wire` to which the cluster's `Relay` writes."""

    __slots__ = ("_chunks", "_connection", "_held", "_relay", "_size", "answered", "relayed")

    def __init__(self, connection: ClientConnection, relayed: bool) -> None:
        self._connection = connection
        self.relayed = relayed
        """Whether another node has relayed or transferred the client to this one. It stays here then."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = 0
        """The size of the CONNECT in the first chunk."""
        self._relay: Relay | None = None
        self.answered = False
        """Whether the other node has sent bytes to the client."""

    # called by the connection

    def keep(self, data: bytes, pos: int) -> None:
        """Keep the bytes from `pos`, which begin with a CONNECT that may be incomplete, instead of those kept before."""
        self._chunks = [data[pos:] if pos else data]
        self._size = len(self._chunks[0])

    def hold(self) -> None:
        """Make the connection stop parsing until `release` or `start` is called. Bytes go to `feed` from now on."""
        framed = frame(self._chunks[0], 0)
        assert framed is not None
        self._held = framed[1]
        self._connection.rest = b""
        self._connection.rest_at = 0

    def feed(self, data: bytes) -> None:
        """Pass on bytes of the client, or keep them until its session is located. Pause reading if it sends more than
        ``connect_bytes`` before that.
        """
        if self._relay is not None:
            self._relay.feed(data)
            return
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._connection.scope.connect_bytes:
            self._connection.wire.pause_reading()

    def release(self) -> bytes:
        """Return the bytes that follow CONNECT. The connection goes on without this relay."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data[self._held :]

    def ask(self, place: Transfer, otherwise: Callable[[Place], None]) -> bool:
        """Ask whether another process takes the client. Return False if its socket is not enough. Call `otherwise` with
        the place that applies if the client is not transferred."""

        def answered(send: SendSocket | None) -> None:
            if self._connection.relay is self and (send is None or not self._transfer(send)):
                otherwise(place.otherwise)

        if self.relayed or getattr(self._connection.wire, "descriptor", None) is None:
            return False
        place.ask(self._connection.peer, self._connection.scope, answered)
        return True

    def _transfer(self, send: SendSocket) -> bool:
        descriptor = getattr(self._connection.wire, "descriptor", None)
        if descriptor is None or not send(descriptor, b"".join(self._chunks)):
            return False
        self._connection.wire.abort()
        self._end(ReasonCode.SUCCESS, "another process has the connection")
        return True

    def start(self, relaying: Relaying) -> None:
        """Pass all bytes to another node from now on."""
        connection = self._connection
        connection.phase = Phase.RELAYED
        connection.wire.resume_reading()
        data = b"".join(self._chunks)
        self._chunks.clear()
        relay = relaying(self, connection.peer, connection.scope)
        if connection.relay is not self:  # it has closed the wire already
            relay.closed()
            return
        self._relay = relay
        if not connection.writable:
            relay.pause_writing()
        relay.feed(data)

    def pause_writing(self) -> None:
        """Take no more bytes from the other node for now."""
        if self._relay is not None:
            self._relay.pause_writing()

    def resume_writing(self) -> None:
        """Take bytes from the other node again."""
        if self._relay is not None:
            self._relay.resume_writing()

    def end(self) -> None:
        """Close the connection to the other node, because the client's connection has ended."""
        self._chunks.clear()
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.closed()

    # called by the cluster: Wire

    def write(self, data: bytes) -> None:
        """Send bytes of the other node to the client. From the first ones on, the client may be silent."""
        connection = self._connection
        if connection.phase is not Phase.RELAYED:
            return
        if not self.answered:
            self.answered = True
            connection.due.cancel()
        connection.traffic.bytes_sent += len(data)
        connection.wire.write(data)

    def close(self) -> None:
        """Close the client's connection. A client that has not received any byte gets a CONNACK with the code for an
        unavailable server.
        """
        connection = self._connection
        if connection.phase is not Phase.RELAYED:
            return
        if self.answered:
            self._end(ReasonCode.UNSPECIFIED_ERROR, "the other node has closed the connection")
        else:
            reason = "the node with the session did not answer"
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, reason)

    def _end(self, code: ReasonCode, reason: str) -> None:
        self._connection.end(DisconnectReason(code, EndedBy.SERVER, error=reason))

    def abort(self) -> None:
        """Close the client's connection at once."""
        if self._connection.phase is Phase.RELAYED:
            self._connection.wire.abort()
            self.answered = True
            self.close()

    def pause_reading(self) -> None:
        """Take no more bytes from the client for now."""
        if self._connection.phase is Phase.RELAYED:
            self._connection.wire.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes from the client again."""
        if self._connection.phase is Phase.RELAYED:
            self._connection.wire.resume_reading()
