"""Publish a source's messages to this broker as a plugin client. Store their marks in the same commit."""

from collections.abc import Callable, Iterable
from typing import Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import (
    Accept,
    BrokerHandle,
    ClientHandle,
    ClientRequest,
    ConnectRefused,
    Message,
    PluginError,
    ReasonCode,
)
from hookmq.storage_api import CommitId, StoreFailed

from hookmq_sinks.source_config import SourceConfig
from hookmq_sinks.source_wire import MARK, MessageTuple, split_identity

AGAIN: Final = frozenset(
    {
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.QUOTA_EXCEEDED,
    }
)
"""Reason codes that mean the broker may accept the same message later."""
_SLICE: Final = 256
"""The maximum number of messages that one call publishes."""


class MarkJournal:
    """Stores the mark of each source message in the plugin's state, in the same commit as the message.

    It has no files of its own. It implements `Journal` and `Volatile` from `hookmq.storage_api`.
    """

    volatile = True

    def __init__(
        self, name: str, client_id: str, filters: Iterable[str], put: Callable[[str, str], None]
    ) -> None:
        self.name = name
        self._client_id = client_id
        self._wanted = [compile_filter(one) for one in filters]
        self._put = put

    def wants(self, topic: str) -> bool:
        """Return whether the source may publish on `topic`."""
        return any(matches(topic) for matches in self._wanted)

    def append(self, commit: CommitId, message: Message) -> None:
        """Store the mark of a message, if this source published the message."""
        if message.sender == self._client_id:
            for name, value in message.properties.user_property or ():
                if name == MARK:
                    key, _, rest = value.partition("=")
                    self._put(key, rest)

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        """Do nothing, because the broker's store holds the marks."""
        done(None)

    def recover(self, last: CommitId) -> None:
        """Do nothing."""


class Intake:
    """Publishes the messages of one source. Call all methods on the event loop."""

    def __init__(self, config: SourceConfig, plugin: str, broker: BrokerHandle) -> None:
        self.config = config
        self.client_id = f"{plugin}-source-{config.name}"
        self.reason = ""
        """Why messages cannot be published now, or ''."""
        self._broker = broker
        self.reasons: dict[int, str] = {}
        """Why messages of the last `publish` call are invalid, by their index."""
        self._clients: dict[str, ClientHandle] = {}
        """The clients by the identity that a message names. The key '' stands for the source's own identity."""
        self._prefix = f"mark/{config.name}/"
        filters = config.kind.local_filters(config.origin)
        self.journal: MarkJournal | None = None
        if filters:
            self.journal = MarkJournal(
                f"{plugin}: marks of {config.name}", self.client_id, filters, self._put
            )

    # marks -----------------------------------------------------------------------------------------------------------

    def _put(self, key: str, value: str) -> None:
        self._broker.state.put(self._prefix + key, value.encode())

    def marks(self) -> dict[str, str]:
        """Return all stored marks."""
        found: dict[str, str] = {}
        cursor = ""
        while True:
            page = self._broker.state.items(self._prefix, cursor, limit=1000)
            for key, value in page.items:
                found[key[len(self._prefix) :]] = value.decode()
            cursor = page.cursor
            if not cursor:
                return found

    async def forget(self, keys: Iterable[str]) -> None:
        """Delete marks, and return after the commit."""
        waiting = [self._broker.state.delete(self._prefix + key) for key in keys]
        for one in waiting:
            await one

    # messages --------------------------------------------------------------------------------------------------------

    async def publish(self, messages: list[MessageTuple]) -> list[int]:
        """Publish messages in order. Return their reason codes after the commit."""
        codes: list[int] = []
        self.reasons.clear()
        run: list[MessageTuple] = []
        running = ""
        for message in messages:
            identity, bare = split_identity(message)
            if run and (identity != running or len(run) == _SLICE):
                codes += await self._publish(run, running, len(codes))
                run = []
            running = identity
            run.append(bare)
        if run:
            codes += await self._publish(run, running, len(codes))
        return codes

    async def _publish(self, messages: list[MessageTuple], identity: str, first: int) -> list[int]:
        try:
            client = await self._connected(identity)
        except (ConnectRefused, PluginError) as error:
            self.reason = str(error)
            return [ReasonCode.SERVER_UNAVAILABLE] * len(messages)
        self.reason = ""
        try:
            return [int(one) for one in await client.publish_many(messages)]
        except PluginError:
            pass  # one of them is invalid, or they are too many at once
        codes: list[int] = []
        for at, one in enumerate(messages, first):
            try:
                codes.append(int(await client.publish(*one)))
            except PluginError as error:
                if not client.connected:
                    codes.append(ReasonCode.UNSPECIFIED_ERROR)
                    continue
                self.reason = self.reasons[at] = str(error)
                codes.append(ReasonCode.TOPIC_NAME_INVALID)
        return codes

    async def _connected(self, identity: str) -> ClientHandle:
        client = self._clients.get(identity)
        if client is None or not client.connected:
            name = identity or self.config.publisher
            client = await self._broker.connect(
                ClientRequest(
                    f"{self.client_id}-{identity}" if identity else self.client_id,
                    username=name,
                    accept=Accept(identity=name),
                )
            )
            self._clients[identity] = client
        return client

    def close(self) -> None:
        """Disconnect the clients."""
        for client in self._clients.values():
            if client.connected:
                client.disconnect()
