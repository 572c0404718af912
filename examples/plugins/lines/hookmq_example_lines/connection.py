r"""One device's connection. Each line is a command, and each command is answered with one line.

    WILL topic payload              the will of the client; before CONNECT
    CONNECT id [user [password]]    OK | ERR code reason
    SUB filter                      OK | ERR code reason
    PUB topic payload               OK | ERR code reason
    QUIT                            the connection closes, without the will

Messages arrive as ``MSG topic payload``. Lines end with ``\n``; a payload is the rest of its line.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hookmq.plugin import (
    BrokerHandle,
    ClientHandle,
    ClientRequest,
    ConnectRefused,
    Delivery,
    DisconnectReason,
    Message,
    Peer,
    PluginError,
    ReasonCode,
    Will,
)

MAX_LINE: Final = 65536
"""Maximum length of a line in bytes."""
MAX_UNANSWERED: Final = 100
"""No more lines are read while there are more unanswered publishes than this."""


class LineConnection(asyncio.Protocol):
    """A device's connection and its client. `enter` returns whether another connection is allowed. `leave` is called
    when the connection ends.
    """

    def __init__(
        self,
        broker: BrokerHandle,
        mount_point: str,
        enter: Callable[["LineConnection"], bool],
        leave: Callable[["LineConnection"], None],
    ) -> None:
        self._broker = broker
        self._mount_point = mount_point
        self._enter = enter
        self._leave = leave
        self._transport: Any = None
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._client: ClientHandle | None = None
        self._will: Will | None = None
        self._task: asyncio.Task[None] | None = None
        self._unanswered = 0
        self._unread: list[Delivery] = []
        self._writable = True
        self._quit = False

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, unless there are too many."""
        self._transport = transport
        # `pause_writing` is then called as soon as the system does not take all bytes.
        self._transport.set_write_buffer_limits(0)
        if not self._enter(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle all complete lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._answer("ERR 0x95 line too long")
            self._transport.close()
            return
        self._lines.extend(lines)
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        """End the client. If the device did not send QUIT, its will is published."""
        self._leave(self)
        if self._task is not None:
            self._task.cancel()
        if self._client is not None and self._client.connected:
            self._client.on_end = None
            self._client.disconnect(will=not self._quit)

    def pause_writing(self) -> None:
        """Stop taking messages from the broker and lines from the device, because the device reads too slowly."""
        self._writable = False
        if self._client is not None and self._client.connected:
            self._client.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Acknowledge the messages that have now been written, and resume taking messages and lines."""
        self._writable = True
        unread, self._unread = self._unread, []
        for delivery in unread:
            delivery.acknowledge()
        if self._client is not None and self._client.connected:
            self._client.resume()
        self._work()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # --- commands --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Handle lines until one of them must be awaited, too many publishes are unanswered, or the device stops
        reading.
        """
        while (
            self._lines
            and self._task is None
            and self._unanswered < MAX_UNANSWERED
            and self._writable
        ):
            if self._transport.is_closing():
                return
            try:
                self._command(self._lines.popleft().rstrip(b"\r"))
            except PluginError as error:
                self._answer(f"ERR 0x{ReasonCode.PROTOCOL_ERROR:02X} {error.message}")
            except (UnicodeDecodeError, ValueError):
                self._answer(f"ERR 0x{ReasonCode.MALFORMED_PACKET:02X} cannot read this line")
        # If reading is paused, TCP's flow control stops the device from sending.
        if self._lines or not self._writable:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _command(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word == b"CONNECT" and self._client is None:
            self._await(self._connect(rest.decode().split(" ")))
        elif word == b"WILL" and self._client is None:
            topic, _, payload = rest.partition(b" ")
            self._will = Will(Message(topic.decode(), payload, 1))
            self._answer("OK")
        elif self._client is None:
            raise PluginError("lines", "expected CONNECT")
        elif word == b"PUB":
            topic, _, payload = rest.partition(b" ")
            self._client.publish_later(topic.decode(), payload, 1, done=self._published)
            self._unanswered += 1
        elif word == b"SUB":
            self._await(self._subscribe(self._client, rest.decode()))
        elif word == b"QUIT":
            self._quit = True
            self._transport.close()
        else:
            raise PluginError("lines", "unknown command")

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, and then handle the remaining lines."""
        self._task = asyncio.get_running_loop().create_task(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PluginError as error:
            self._answer(f"ERR 0x{ReasonCode.PROTOCOL_ERROR:02X} {error.message}")
        self._task = None
        self._work()

    async def _connect(self, words: list[str]) -> None:
        client_id, user, password = (*words, "", "")[:3]
        host, port = self._transport.get_extra_info("peername")[:2]
        request = ClientRequest(
            client_id,
            user or None,
            password.encode() if password else None,
            will=self._will,
            mount_point=self._mount_point,
            peer=Peer(host, port, "lines"),
        )
        try:
            client = await self._broker.connect(request)
        except ConnectRefused as refused:
            self._answer(f"ERR 0x{refused.code:02X} {refused.reason or refused.code.text}")
            return
        client.on_messages = self._messages
        client.on_end = self._ended
        self._client = client
        if not self._writable:
            client.pause()
        self._answer("OK")

    async def _subscribe(self, client: ClientHandle, filter: str) -> None:
        code = await client.subscribe(filter, 1)
        self._answer(f"ERR 0x{code:02X} {code.text}" if code.failed else "OK")

    # --- what the client calls -------------------------------------------------------------------------------------

    def _published(self, code: ReasonCode) -> None:
        self._unanswered -= 1
        self._answer(f"ERR 0x{code:02X} {code.text}" if code.failed else "OK")
        if self._lines and self._unanswered < MAX_UNANSWERED // 2:
            self._work()

    def _messages(self, deliveries: list[Delivery]) -> None:
        lines: list[bytes] = []
        written: list[Delivery] = []
        for delivery in deliveries:
            message = delivery.message
            if b"\n" in message.payload:  # this protocol cannot express it
                delivery.acknowledge(ReasonCode.PAYLOAD_FORMAT_INVALID)
                continue
            lines.append(b"MSG %b %b\n" % (message.topic.encode(), message.payload))
            written.append(delivery)
        if lines:
            self._write(b"".join(lines))
        if self._writable:
            for delivery in written:
                delivery.acknowledge()
        else:  # the system did not take all lines: `resume_writing` acknowledges them
            self._unread += written

    def _ended(self, reason: DisconnectReason) -> None:
        self._answer(f"ERR 0x{reason.code:02X} {reason.error or reason.code.text}")
        if self._writable:
            self._transport.close()
        else:  # `close` would wait for a device that does not read
            self._transport.abort()

    def _answer(self, text: str) -> None:
        self._write(text.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)
