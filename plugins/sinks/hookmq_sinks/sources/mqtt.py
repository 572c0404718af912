"""The `mqtt` source, which subscribes to a remote broker. Together with the driver of the same name, it forms a bridge.

A message is acknowledged to the remote broker once this broker has committed it. At QoS 2, the packet id is the
message's mark. The mark is stored in the same commit as the message, and deleted after PUBREL. A message is therefore
published once, even after a crash.
"""

import asyncio
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from hookmq.mqtt_api import (
    EMPTY,
    In,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    contains,
    encode,
)
from hookmq.plugin import ConfigError, setting
from hookmq_toolkit.durable_files import write_atomically

from hookmq_sinks.mqtt.hops import PATH, is_loop, with_hop
from hookmq_sinks.mqtt.link import MqttLink
from hookmq_sinks.mqtt.reasons import LinkError, code_text
from hookmq_sinks.mqtt.remap import TopicMap
from hookmq_sinks.mqtt.remote import RemoteBroker
from hookmq_sinks.mqtt.settings import RemoteAddress, RemoteSettings
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable

MOST: Final = 1000
"""The maximum number of messages that `read` returns."""
BYTES: Final = 1 << 20
"""The size of waiting messages above which the source stops reading from the connection."""
_SUBSCRIBE_ID: Final = 65_534
_FILE: Final = "subscriptions.json"


@dataclass(frozen=True, kw_only=True)
class MqttSourceSettings(RemoteSettings):
    """The settings of a bridge from a remote broker."""

    retain: bool = setting(True, "whether messages that are retained there are retained here")
    properties: bool = setting(
        True, "whether MQTT 5 properties are passed on, also user properties"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rules:
            raise ConfigError("rules: empty, but at least one is required")
        filters = [one.remote_filter for one in self.rules]
        for index, one in enumerate(filters):
            for other in filters[index + 1 :]:
                if contains(one, other) or contains(other, one):
                    raise ConfigError(
                        f"rules: {one} and {other} overlap, so messages would arrive twice"
                    )


@dataclass(slots=True, eq=False)
class _Received:
    """A received PUBLISH. `message` is None if the PUBLISH is a duplicate or in a loop, and only needs an
    acknowledgement.
    """

    id: int
    qos: int
    message: Incoming | None


class MqttSource(Source):
    """Subscribes to a remote broker; see the module docstring."""

    Settings: ClassVar[type] = MqttSourceSettings
    settings: MqttSourceSettings

    def __init__(self, settings: MqttSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        client_id = settings.client_id or f"hookmq-{settings.broker}-{context.source}"
        self._remote = RemoteBroker(settings, client_id, self._take, bridge=True)
        self._map = TopicMap(settings.rules, to_remote=False)
        self._stamp = Properties(user_property=with_hop((), settings.remote_name))
        self._link: MqttLink | None = None
        self._queue: deque[_Received] = deque()
        """Messages that were received, but not yet returned by `read`."""
        self._handed: deque[_Received] = deque()
        """Messages that `read` has returned, but that are not yet acknowledged."""
        self._bytes = 0
        self._more = asyncio.Event()
        self._reply: asyncio.Future[Any] | None = None
        self._released: list[int] = []
        self._release = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._counts = {"loops": 0, "repeated": 0, "unwanted": 0}

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return filters for the local topics of QoS 2 messages."""
        return [one.local_filter for one in settings.rules if one.qos == 2]

    # open and close --------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. Subscribe if the remote broker has no session."""
        settings = self.settings
        marks = self.context.marks
        try:
            link = await self._remote.connect(
                self._starts_anew, int(settings.session_expiry), settings.window_for(1)
            )
        except LinkError as error:
            raise SourceUnavailable(error.reason, error.permanent) from error
        self._link = link
        link.lost.add_done_callback(lambda _: self._more.set())
        self._tasks = [
            asyncio.create_task(self._release_all()),
            asyncio.create_task(self._watch_addresses()),
        ]
        present = link.connack.session_present
        if not present:
            # Packet ids of an earlier session mean nothing now. The new session has no messages before SUBSCRIBE.
            await self.context.forget(list(marks))
        wanted: dict[str, int] = {one.remote_filter: one.qos for one in settings.rules}
        known = await asyncio.to_thread(self._read_known) if present else {}
        if known == {"address": str(self._remote.address), "filters": wanted}:
            return
        await self._subscribe(
            link, wanted, [one for one in known.get("filters", ()) if one not in wanted]
        )
        await asyncio.to_thread(self._write_known, wanted)

    def _starts_anew(self, address: RemoteAddress) -> bool:
        return not self.settings.session_expiry

    async def _subscribe(self, link: MqttLink, wanted: dict[str, int], gone: list[str]) -> None:
        five = link.version == 5
        if gone:
            await self._ask(link, Unsubscribe(_SUBSCRIBE_ID, tuple(gone)))
        requests = tuple(
            SubscribeRequest(one, qos, five, five, 1 if five else 0) for one, qos in wanted.items()
        )
        suback = await self._ask(link, Subscribe(_SUBSCRIBE_ID, requests))
        for request, code in zip(requests, suback.codes, strict=False):
            if code >= 0x80:
                raise SourceUnavailable(
                    f"the remote broker refused {request.filter}: {code_text(code)}", True
                )
            if code < request.qos:
                self.context.log("warning", "sources.qos_lowered", filter=request.filter, qos=code)

    async def _ask(self, link: MqttLink, packet: Any) -> Any:
        self._reply = asyncio.get_running_loop().create_future()
        link.send(packet)
        waiting: set[asyncio.Future[Any]] = {self._reply, link.lost}
        done, _ = await asyncio.wait(
            waiting, timeout=self.settings.connect_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if self._reply in done:
            return self._reply.result()
        self._require(link)
        raise SourceUnavailable("the remote broker did not answer SUBSCRIBE in time")

    def _read_known(self) -> dict[str, Any]:
        if self.context.folder is None:
            return {}
        try:
            found = json.loads((self.context.folder / _FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write_known(self, filters: dict[str, int]) -> None:
        if self.context.folder is not None:
            data = {"address": str(self._remote.address), "filters": filters}
            write_atomically(self.context.folder / _FILE, json.dumps(data).encode())

    async def _watch_addresses(self) -> None:
        """Switch back to a preferred address when it is available again."""
        interval = self.settings.return_after
        while interval:
            await asyncio.sleep(interval)
            if await self._remote.better() and self._link is not None:
                await self._link.close()
                return

    async def close(self) -> None:
        """Close the connection."""
        for one in self._tasks:
            one.cancel()
        if self._link is not None:
            await self._remote.close(self._link)

    def metrics(self) -> Mapping[str, float]:
        """Return how many messages were dropped as loops, sent again by the remote broker, or matched no rule."""
        return self._counts

    # packets ---------------------------------------------------------------------------------------------------------

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Publish):
            self._take_publish(packet)
        elif isinstance(packet, Pubrel):
            self._released.append(packet.packet_id)
            self._release.set()
        elif (
            isinstance(packet, Suback | Unsuback)
            and self._reply is not None
            and not self._reply.done()
        ):
            self._reply.set_result(packet)

    def _take_publish(self, packet: Publish) -> None:
        message: Incoming | None = None
        user = packet.properties.user_property or ()
        if packet.qos == 2 and str(packet.packet_id) in self.context.marks:
            self._counts["repeated"] += 1
        elif user and is_loop(user, self.settings.broker):
            self._counts["loops"] += 1
        else:
            message = self._make(packet)
            if message is None:
                self._counts["unwanted"] += 1
            elif packet.qos == 2:
                message.mark = (str(packet.packet_id), "1")
        if message is None and not packet.qos:
            return
        received = _Received(packet.packet_id, packet.qos, message)
        self._queue.append(received)
        self._bytes += 64 if message is None else message.size
        if self._bytes >= BYTES and self._link is not None:
            self._link.pause_reading(True)
        self._more.set()

    def _make(self, packet: Publish) -> Incoming | None:
        found = self._map.find(packet.topic)
        if found is None:
            return None
        settings = self.settings
        properties = packet.properties
        if not properties:
            properties = self._stamp
        else:
            given = properties.user_property or ()
            if settings.properties:
                properties = properties.only(In.WILL)
            else:
                given = tuple(one for one in given if one[0] == PATH)
                properties = EMPTY
            properties = properties.replace(user_property=with_hop(given, settings.remote_name))
        return Incoming(
            found[0], packet.payload, packet.qos, packet.retain and settings.retain, properties
        )

    def _require(self, link: MqttLink) -> None:
        if link.lost.done():
            error = link.lost.result()
            raise SourceUnavailable(error.reason, error.permanent)

    # Source ----------------------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[Incoming]:
        """Wait for messages."""
        link = self._link
        if link is None:
            raise SourceUnavailable("not connected")
        while True:
            if link.lost.done():
                # The remote broker sends the others again.
                self._queue = deque(one for one in self._queue if not one.qos)
            messages = self._next()
            if messages:
                return messages
            self._require(link)
            self._acknowledge_first({})
            self._more.clear()
            await self._more.wait()

    def _next(self) -> list[Incoming]:
        messages: list[Incoming] = []
        while self._queue and len(messages) < MOST:
            received = self._queue.popleft()
            self._handed.append(received)
            if received.message is None:
                self._bytes -= 64
            else:
                self._bytes -= received.message.size
                messages.append(received.message)
        if self._link is not None and self._bytes < BYTES:
            self._link.pause_reading(False)
        return messages

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Send PUBACKs and PUBRECs in message order."""
        self._acknowledge_first({id(one): code for one, code in zip(messages, codes, strict=True)})
        if self._link is not None:
            try:
                await self._link.drained()
            except LinkError as error:
                raise SourceUnavailable(error.reason, error.permanent) from error

    def _acknowledge_first(self, codes: Mapping[int, int]) -> None:
        """Acknowledge the oldest messages from `read`, up to the first one that has no code yet."""
        link = self._link
        assert link is not None
        parts: list[bytes] = []
        while self._handed:
            first = self._handed[0]
            code = 0 if first.message is None else codes.get(id(first.message))
            if code is None:
                break
            self._handed.popleft()
            if link.version != 5 or code < 0x80:
                code = 0
            if first.qos == 1:
                parts.append(encode(Puback(first.id, code), link.version))
            elif first.qos == 2:
                parts.append(encode(Pubrec(first.id, code), link.version))
        if parts:
            link.send_bytes(b"".join(parts))

    async def _release_all(self) -> None:
        """Delete the marks of released messages, then send PUBCOMP. After that, the remote broker may reuse the packet
        ids.
        """
        link = self._link
        assert link is not None
        marks = self.context.marks
        while True:
            await self._release.wait()
            self._release.clear()
            ids, self._released = self._released, []
            await self.context.forget([str(one) for one in ids if str(one) in marks])
            link.send_bytes(b"".join(encode(Pubcomp(one), link.version) for one in ids))
