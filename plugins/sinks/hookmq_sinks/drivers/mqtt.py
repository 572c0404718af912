"""The `mqtt` driver, which publishes to a remote broker. Together with the source of the same name, it forms a bridge.

At QoS 0 and 1, a batch is confirmed when all PUBACKs have arrived. At QoS 2, the remote broker gets each message
exactly once, even if this process or this broker is killed; `hookmq_sinks.mqtt.in_flight` explains how.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from hookmq.mqtt_api import (
    EMPTY,
    In,
    Properties,
    Publish,
    Pubrel,
    encode,
    encode_section,
    validate_topic,
)
from hookmq.plugin import HookMQError, setting

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    RecordTemplate,
    Rejected,
    TargetUnavailable,
    template_setting,
)
from hookmq_sinks.mqtt.ack_window import AckWindow, OutPacket, require
from hookmq_sinks.mqtt.hops import PATH, UserProperties, is_loop, with_hop
from hookmq_sinks.mqtt.in_flight import InFlight, packet_id, read_in_flight
from hookmq_sinks.mqtt.link import MqttLink
from hookmq_sinks.mqtt.reasons import REFUSED, LinkError
from hookmq_sinks.mqtt.remap import TopicMap
from hookmq_sinks.mqtt.remote import RemoteBroker
from hookmq_sinks.mqtt.run_encoder import Coded, RunEncoder
from hookmq_sinks.mqtt.settings import RemoteAddress, RemoteSettings
from hookmq_sinks.record_run import RecordRun

_CHUNK: Final = 1 << 16
"""Bytes that are collected before they are written to the socket."""
_AGAIN: Final = 1.0
_LONGEST: Final = 60.0
"""The first and the longest delay before an idle bridge connects again, in seconds."""
_DUP: Final = 0x08


@dataclass(frozen=True, kw_only=True)
class MqttSettings(RemoteSettings):
    """The settings of a bridge to a remote broker."""

    qos: int = setting(1, "QoS of messages that no rule matches", maximum=2)
    topic: str = template_setting(
        "${topic}", "topic at the remote broker, for messages that no rule matches"
    )
    retain: bool = setting(True, "whether retained messages are retained at the remote broker")
    properties: bool = setting(
        True, "whether MQTT 5 properties of the publisher are passed on, also user properties"
    )


class MqttDriver(Driver):
    """Publishes to a remote broker; see the module docstring."""

    Settings: ClassVar[type] = MqttSettings
    holds_position = True
    settings: MqttSettings

    def __init__(self, settings: MqttSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        lane = context.slot.removeprefix(context.sink)
        client_id = settings.client_id or f"hookmq-{settings.broker}-{context.sink}"
        self._window = AckWindow()
        self._remote = RemoteBroker(settings, client_id + lane, self._window.take)
        if lane and not lane.startswith(":1/"):
            self._remote.state_topic = ""
        self._remote_name = settings.remote_name
        self._map = TopicMap(settings.rules, to_remote=True)
        self._template = RecordTemplate(settings.topic, "topic")
        self._exact = settings.qos == 2 or any(one.qos == 2 for one in settings.rules)
        self._runs: RunEncoder | None = None
        """Encodes whole runs; None if each record has to be encoded by itself."""
        if not self._exact and all(one.split(".")[0] == "topic" for one in self._template.names):
            empty = Record("", 0, "", b"")
            section = b""
            if settings.level == 5:
                section = encode_section(self._properties(empty, None), In.PUBLISH)
            self._runs = RunEncoder(self._place_topic, section, self._encode_one)
        self._path: Path | None = None
        if context.folder is not None:
            name = re.sub(r"[^A-Za-z0-9_.-]", "-", context.slot)
            self._path = context.folder / f"mqtt-{name}.json"
        self._state = InFlight(context.log_id)
        self._link: MqttLink | None = None
        self._idle: asyncio.Task[None] | None = None
        self._done: set[int] = set()
        """If a batch was partly rejected, the offsets of its records that have already arrived."""
        self._counts = {"connections": 0, "expired": 0, "loops": 0, "sent_again": 0}

    # open and close --------------------------------------------------------------------------------------------------

    async def open(self) -> Position | None:
        """Connect, and send PUBREL for the messages that the remote broker already has."""
        held = await asyncio.to_thread(self._read) if self._exact else None
        if held is not None:
            self._state = held
        await self._connect()
        if held is None:
            return None
        state = self._state
        return Position(state.log_id, state.offset)

    def _read(self) -> InFlight | None:
        if self._path is None:
            return None
        try:
            found = read_in_flight(self._path)
        except ValueError:
            raise TargetUnavailable(
                f"{self._path} is damaged; delete it to continue", True
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"{self._path}: {error.strerror}", True) from error
        return found if found is not None and found.log_id == self.context.log_id else None

    async def _connect(self) -> None:
        settings = self.settings
        expiry = int(settings.session_expiry) if self._exact and self._path is not None else 0
        try:
            link = await self._remote.connect(self._starts_anew, expiry, 1)
        except LinkError as error:
            raise TargetUnavailable(error.reason, error.permanent) from error
        self._link = link
        self._window.link = link
        link.lost.add_done_callback(lambda _: self._window.wake())
        self._counts["connections"] += 1
        top = link.connack.properties.maximum_qos
        wanted = max(
            [settings.qos if not settings.rules else 0, *(one.qos for one in settings.rules)]
        )
        if top is not None and wanted > top:
            raise TargetUnavailable(
                f"the remote broker has no QoS {wanted}, but at most QoS {top}", True
            )
        state = self._state
        if state.sent and not link.connack.session_present:
            # The remote broker has lost the session. Messages that it may not have published are sent again.
            state.offset, state.sent = min([state.offset, *state.to_release]), ()
        if to_release := state.to_release:
            await self._release(to_release)
        self._idle = asyncio.create_task(self._stay_connected(link))

    def _starts_anew(self, address: RemoteAddress) -> bool:
        return not (self._state.sent and self._state.address == str(address))

    async def _stay_connected(self, link: MqttLink) -> None:
        """Reconnect if the connection is lost while the driver is idle, so that the state topic stays correct."""
        reason = await asyncio.shield(link.lost)
        if self._window.count or self._state.sent:
            return  # `write` reports it, and the engine opens a new driver
        self.context.log("warning", "sinks.bridge_lost", reason=reason.reason)
        delay = _AGAIN
        while True:
            await asyncio.sleep(delay)
            delay = min(_LONGEST, delay * 2)
            with suppress(TargetUnavailable):
                await self._connect()
                return

    async def close(self) -> None:
        """Close the connection."""
        if self._idle is not None:
            self._idle.cancel()
        if self._link is not None:
            await self._remote.close(self._link)

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample maps to no topic on the remote broker, or is too large."""
        if sample is None:
            return ()
        try:
            self._encode(0, sample)
        except RecordError as error:
            return [Problem("topic", str(error))]
        return ()

    def metrics(self) -> Mapping[str, float]:
        """Return the number of connections, and of messages that expired, looped or were sent again."""
        return self._counts

    # packets ---------------------------------------------------------------------------------------------------------

    def _place(self, record: Record) -> tuple[str, int]:
        """Return the topic at the remote broker and the QoS. Raises RecordError."""
        found = self._map.find(record.topic)
        topic, qos = (
            found if found is not None else (self._template.fill(record), self.settings.qos)
        )
        try:
            validate_topic(topic)
        except HookMQError as error:
            raise RecordError(f"{topic[:100]!r} is not a topic: {error}") from None
        return topic, qos

    def _place_topic(self, topic: str) -> tuple[str, int]:
        return self._place(Record("", 0, topic, b""))

    def _encode_one(self, record: Record) -> bytes | None:
        packet = self._encode(0, record)
        return None if packet is None else packet.data

    def _encode(self, index: int, record: Record) -> OutPacket | None:
        """Return the packet for a record, or None if the record has expired or is in a loop. Raises RecordError."""
        settings = self.settings
        if record.user_properties and is_loop(
            record.user_properties, settings.broker, self._remote_name
        ):
            self._counts["loops"] += 1
            return None
        topic, qos = self._place(record)
        properties = EMPTY
        if settings.level == 5:
            seconds = None
            if record.expires_at is not None:
                seconds = int(record.expires_at - time.time())
                if seconds < 0:
                    self._counts["expired"] += 1
                    return None
            properties = self._properties(record, seconds)
        number = packet_id(record.offset) if qos else 0
        data = encode(
            Publish(topic, record.body, qos, record.retain and settings.retain, False, number, properties), settings.level
        )  # fmt: skip
        link = self._link
        most = None if link is None else link.connack.properties.maximum_packet_size
        if most is not None and len(data) > most:
            raise RecordError(
                f"the packet of {len(data)} bytes exceeds the remote broker's limit of {most}"
            )
        return OutPacket(index, record.offset, number, qos, data)

    def _properties(self, record: Record, seconds: int | None) -> Properties:
        given: UserProperties = record.user_properties
        if not self.settings.properties:
            given = tuple(one for one in given if one[0] == PATH)
            return Properties(
                user_property=with_hop(given, self.settings.broker), message_expiry_interval=seconds
            )
        return Properties(
            payload_format_indicator=1 if record.text_payload and not record.changed else None,
            message_expiry_interval=seconds,
            content_type=record.content_type,
            response_topic=record.response_topic,
            correlation_data=record.correlation_data,
            user_property=with_hop(given, self.settings.broker),
        )

    # write -----------------------------------------------------------------------------------------------------------

    async def write(self, batch: Batch) -> None:
        """Publish the records, and return when the remote broker has acknowledged all of them."""
        link = self._link
        if link is None:
            raise TargetUnavailable("not connected")
        require(link)
        if await self._remote.better():
            raise TargetUnavailable("returning to an address that is preferred")
        if self._runs is not None and batch.runs and await self._write_runs(link, batch.runs):
            return
        packets: list[OutPacket] = []
        refused: dict[int, str] = {}
        for index, record in enumerate(batch.records):
            if record.offset in self._done:
                continue
            try:
                packet = self._encode(index, record)
            except RecordError as error:
                refused[index] = str(error)
                continue
            if packet is not None:
                packets.append(packet)
        if not self._exact:
            await self._send(link, packets)
            refused.update(self._window.refusals(REFUSED))
            if refused:
                raise Rejected(refused, stored=True)
            return
        if refused:
            raise Rejected(refused)
        await self._write_exactly(link, packets, batch.position.offset)
        self._done.clear()

    async def _write_runs(self, link: MqttLink, runs: Sequence[RecordRun]) -> bool:
        """Publish whole runs. Return False, having sent nothing, if each record has to be encoded by itself."""
        assert self._runs is not None
        most = link.connack.properties.maximum_packet_size
        coded: list[Coded] = []
        counts = dict(self._counts)
        for run in runs:
            try:
                one = self._runs.encode(run, most)
            except RecordError:
                one = None
            if one is None:
                self._counts.update(
                    counts
                )  # the records are counted when each is encoded by itself
                return False
            coded.append(one)
        place, end = 0, runs[0].first
        for run, one in zip(runs, coded, strict=True):
            if run.first != end:
                await self._window.until(0)  # the packet ids skip some numbers here
            end = run.end
            await self._send_run(link, run.first, place, one)
            place += len(run)
        await self._drained(link)
        await self._window.until(0)
        if refused := self._window.refusals(REFUSED):
            raise Rejected(refused, stored=True)
        return True

    async def _send_run(self, link: MqttLink, offset: int, place: int, coded: Coded) -> None:
        """Send a run's packets without exceeding the window. `place` is the index of its first record in the batch."""
        packets = coded.packets
        if not coded.qos:
            link.send_bytes(b"".join(packets))
            await self._drained(link)
            return
        window = min(self.settings.window_for(1), link.receive_maximum)
        step = max(1, window // 2)
        for start in range(0, len(packets), step):
            part = packets[start : start + step]
            await self._window.until(window - len(part))
            self._window.expect(offset + start, place + start, len(part))
            link.send_bytes(b"".join(part))
            await self._drained(link)

    async def _send(
        self, link: MqttLink, packets: Sequence[OutPacket], again: Sequence[int] = ()
    ) -> None:
        """Send packets without exceeding the window, and wait for their acknowledgements."""
        window = min(self.settings.window_for(2 if self._exact else 1), link.receive_maximum)
        waiting = self._window.waiting
        parts: list[bytes] = []
        size = 0
        for packet in packets:
            data = packet.data
            if packet.qos:
                if len(waiting) >= window or packet.id in waiting:
                    link.send_bytes(b"".join(parts))
                    parts, size = [], 0
                    await self._window.until(0 if packet.id in waiting else window // 2)
                waiting[packet.id] = packet
                if packet.offset in again:
                    data = bytes((data[0] | _DUP,)) + data[1:]
                    self._counts["sent_again"] += 1
            parts.append(data)
            size += len(data)
            if size >= _CHUNK:
                link.send_bytes(b"".join(parts))
                parts, size = [], 0
                await self._drained(link)
        link.send_bytes(b"".join(parts))
        await self._drained(link)
        await self._window.until(0)

    async def _drained(self, link: MqttLink) -> None:
        try:
            await link.drained()
        except LinkError as error:
            raise TargetUnavailable(error.reason, error.permanent) from error

    # exactly once ----------------------------------------------------------------------------------------------------

    async def _write_exactly(self, link: MqttLink, packets: list[OutPacket], end: int) -> None:
        window = min(self.settings.window_for(2 if self._exact else 1), link.receive_maximum)
        runs = [packets[at : at + window] for at in range(0, len(packets), window)]
        for number, run in enumerate(runs):
            last = end if number == len(runs) - 1 else run[-1].offset + 1
            await self._write_run(link, run, last)
            self._done.update(one.offset for one in run)
        if not runs:
            await self._save(end, self._state.sent)

    async def _write_run(self, link: MqttLink, run: list[OutPacket], end: int) -> None:
        state, last = self._state, run[-1].offset
        exact = [one.offset for one in run if one.qos == 2]
        ids = {one.id for one in run}
        again = [one for one in state.sent if one in exact]
        # Records of an earlier attempt that are no longer wanted, or whose packet ids this run needs.
        gone = [
            one for one in state.sent if one not in exact and (one <= last or packet_id(one) in ids)
        ]
        if gone:
            await self._release(gone)
        later = tuple(one for one in state.sent if one > last)
        if exact and (*exact, *later) != state.sent:
            await self._save(run[0].offset, (*exact, *later))
        await self._send(link, run, again)
        bad = {one.offset for one in run if one.place in self._window.codes}
        state.sent = tuple(one for one in state.sent if one not in bad)
        if refused := self._window.refusals(REFUSED):
            raise Rejected(refused)
        await self._save(end, state.sent)
        if to_release := state.to_release:
            await self._release(to_release)
            await self._save(end, state.sent, sync=False)

    async def _release(self, offsets: Sequence[int]) -> None:
        """Send PUBREL for the records at `offsets`, and wait for each PUBCOMP."""
        link = self._link
        assert link is not None
        released = set(offsets)
        ids = [packet_id(one) for one in offsets]
        self._window.releasing.update(ids)
        link.send_bytes(b"".join(encode(Pubrel(one), link.version) for one in ids))
        await self._window.until(0)
        self._state.sent = tuple(one for one in self._state.sent if one not in released)

    async def _save(self, offset: int, sent: tuple[int, ...], *, sync: bool = True) -> None:
        state = self._state
        state.offset, state.sent = offset, sent
        state.address = str(self._remote.address)
        if self._path is not None:
            try:
                await asyncio.to_thread(state.save, self._path, sync=sync)
            except OSError as error:
                raise TargetUnavailable(f"{self._path}: {error.strerror}", True) from error


__all__ = ["MqttDriver", "MqttSettings"]
