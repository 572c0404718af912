"""Choose one of several addresses of a remote broker, and connect to it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, Connect, Properties, Publish, WillFields
from hookmq_toolkit.tls_client import client_context

from hookmq_sinks.mqtt.link import MqttLink
from hookmq_sinks.mqtt.reasons import LinkError, network_error
from hookmq_sinks.mqtt.settings import RemoteAddress, RemoteSettings

STATE_ID: Final = 65_535
"""The packet id for messages on the state topic. Other messages of the bridge use lower ids."""
_NEXT: dict[str, int] = {}
"""For each client id, the position of the address that is tried first."""


class RemoteBroker:
    """Connects to the first address that accepts the bridge.

    With `round_robin`, it starts with the address after the one used last. Otherwise it starts with the first address,
    and `better` checks whether an address before the current one is available again.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        client_id: str,
        on_packet: Callable[[Any], None],
        *,
        bridge: bool = False,
    ) -> None:
        self.settings = settings
        self.client_id = client_id
        self.address: RemoteAddress | None = None
        self.state_topic = settings.state_topic
        self._on_packet = on_packet
        self._bridge = bridge and settings.level == 4
        self._remotes = settings.remotes
        self._index = 0
        self._tried = 0.0

    async def connect(
        self, clean: Callable[[RemoteAddress], bool], expiry: int, receive_maximum: int
    ) -> MqttLink:
        """Connect. `clean` returns whether the session at an address must start afresh. Raises LinkError with the
        reasons for all addresses. The error is permanent if an operator must act for every address.
        """
        settings = self.settings
        try:
            context = (
                None
                if settings.tls is None
                else await asyncio.to_thread(client_context, settings.tls)
            )
        except OSError as error:
            raise LinkError(f"tls: {error.strerror or error}", True) from error
        count = len(self._remotes)
        first = _NEXT.get(self.client_id, 0) if settings.round_robin else 0
        errors: list[LinkError] = []
        for step in range(count):
            index = (first + step) % count
            address = self._remotes[index]
            try:
                link = await self._try(address, context, clean(address), expiry, receive_maximum)
            except LinkError as error:
                text = f"{address}: {error.reason}" if count > 1 else error.reason
                errors.append(LinkError(text, error.permanent))
                _NEXT[self.client_id] = (index + 1) % count
                continue
            _NEXT[self.client_id] = (index + 1) % count
            self.address, self._index, self._tried = address, index, time.monotonic()
            self._tell(link)
            return link
        permanent = all(one.permanent for one in errors)
        raise LinkError("; ".join(one.reason for one in errors), permanent)

    async def _try(
        self, address: RemoteAddress, context: Any, clean: bool, expiry: int, receive_maximum: int
    ) -> MqttLink:
        five = self.settings.level == 5
        if five:
            return await self._open(address, context, clean, expiry, receive_maximum)
        if expiry and clean:
            # MQTT 3.1.1 has no Clean Start: a connection with a clean session ends the old session.
            first = await self._open(address, context, True, 0, receive_maximum)
            await first.close()
        return await self._open(address, context, not expiry, expiry, receive_maximum)

    async def _open(
        self, address: RemoteAddress, context: Any, clean: bool, expiry: int, receive_maximum: int
    ) -> MqttLink:
        try:
            return await self._handshake(address, context, clean, expiry, receive_maximum)
        except LinkError as error:
            if not (
                self._bridge
                and ("unsupported protocol" in error.reason or "closed" in error.reason)
            ):
                raise
        self._bridge = False  # the remote broker does not know the bridge bit
        return await self._handshake(address, context, clean, expiry, receive_maximum)

    async def _handshake(
        self, address: RemoteAddress, context: Any, clean: bool, expiry: int, receive_maximum: int
    ) -> MqttLink:
        settings = self.settings
        properties = EMPTY
        if settings.level == 5:
            properties = Properties(
                session_expiry_interval=expiry or None,
                receive_maximum=receive_maximum,
                maximum_packet_size=settings.max_packet_size,
            )
        will = WillFields(self.state_topic, b"0", 1, True) if self.state_topic else None
        password = None if settings.password is None else settings.password.encode()
        connect = Connect(
            self.client_id, settings.level, clean, int(settings.keep_alive), settings.username, password, will,
            self._bridge, properties,
        )  # fmt: skip
        try:
            return await MqttLink.open(
                address,
                context,
                connect,
                settings.connect_timeout,
                settings.max_packet_size,
                self._on_packet,
            )
        except OSError as error:
            raise network_error(error) from error

    def _tell(self, link: MqttLink) -> None:
        """Publish to the state topic that the bridge is connected."""
        if self.state_topic:
            link.send(Publish(self.state_topic, b"1", 1, True, False, STATE_ID))

    async def close(self, link: MqttLink) -> None:
        """Publish to the state topic that the bridge has ended, and close the connection."""
        if self.state_topic and link.open_now:
            # At QoS 0, because nobody waits for the acknowledgement.
            link.send(Publish(self.state_topic, b"0", 0, True))
        await link.close()

    async def better(self) -> bool:
        """Return whether an address before the current one accepts connections. Tries at most once every
        `return_after`.
        """
        settings, now = self.settings, time.monotonic()
        if settings.round_robin or not self._index or not settings.return_after:
            return False
        if now - self._tried < settings.return_after:
            return False
        self._tried = now
        for address in self._remotes[: self._index]:
            try:
                async with asyncio.timeout(min(1.0, settings.connect_timeout)):
                    _, writer = await asyncio.open_connection(address.host, address.port)
                writer.close()
            except (OSError, TimeoutError):
                continue
            return True
        return False


__all__ = ["STATE_ID", "RemoteBroker"]
