"""Carry out consumers' settlements.

The plugin returns `Handled`, so the broker acknowledges a settlement only after the turn's commit, which contains it. A
settlement never reaches subscribers or a queue.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from hookmq.plugin import BrokerHandle, ClientInfo, Deny, Handled, Message, ReasonCode

from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.queue import Queue
from hookmq_queues.settlement import Settlement, SettlementError, impossible, malformed, parse

_DONE = Handled()
_READS = 100
"""Maximum number of disk reads for one settlement. After that, the settlement is refused."""


class Settler:
    """Carries out settlements. `dispatchers_of` returns the groups in which an online client consumes."""

    def __init__(
        self,
        queues: Callable[[], Mapping[str, Queue]],
        dispatchers_of: Callable[[str], Iterable[Dispatcher]],
    ) -> None:
        self._queues = queues
        self._dispatchers_of = dispatchers_of

    def settle(
        self, client: ClientInfo | None, queue: str, verb: str, message: Message, broker: BrokerHandle
    ) -> Deny | Handled | Awaitable[Deny | Handled]:  # fmt: skip
        """Carry out the settlement in `message`, or return a Deny that says why it is refused."""
        try:
            if client is None:
                raise SettlementError(
                    ReasonCode.NOT_AUTHORIZED, "only a consumer can settle messages"
                )
            settlement = parse(verb, queue, message.user_property)
            dispatcher = self._dispatcher(client.client_id, settlement)
            chosen = dispatcher.holdings.chosen(settlement, client.client_id)
            if verb == "$reject":
                found = dispatcher.loaded(chosen)
                if len(found) < len(chosen):
                    return self._reject_later(client, settlement, broker)
                self._reject(dispatcher, found, settlement)
            elif verb == "$nack":
                dispatcher.outcomes.give_back(chosen, settlement.delay, settlement.reason)
            else:
                dispatcher.outcomes.acknowledge(chosen)
            self._finish(dispatcher)
        except SettlementError as error:
            return Deny(error.code, str(error))
        return _DONE

    def _dispatcher(self, client_id: str, settlement: Settlement) -> Dispatcher:
        queue = settlement.queue
        found = {one.name: one for one in self._dispatchers_of(client_id) if one.queue == queue}
        if queue not in self._queues():  # it was deleted while messages were read
            raise SettlementError(ReasonCode.TOPIC_NAME_INVALID, f"there is no queue {queue!r}")
        if settlement.group is not None:
            if settlement.group not in self._queues()[queue].dispatchers:
                raise malformed(f"the queue {queue} has no group {settlement.group[:128]!r}")
            found = {name: one for name, one in found.items() if name == settlement.group}
        if not found:
            group = "" if settlement.group is None else f" in the group {settlement.group}"
            raise SettlementError(
                ReasonCode.NOT_AUTHORIZED, f"the client does not consume the queue {queue}{group}"
            )
        if len(found) > 1:
            raise impossible(
                f"the client consumes in {len(found)} groups of the queue {queue}: name one in the property group"
            )
        dispatcher = next(iter(found.values()))
        if dispatcher.settings.settle != "explicit":
            raise impossible(f"messages of the group {dispatcher.name} are settled by PUBACK")
        return dispatcher

    def _reject(
        self, dispatcher: Dispatcher, messages: dict[int, Message], settlement: Settlement
    ) -> None:
        if not dispatcher.outcomes.reject(messages, settlement.reason):
            raise SettlementError(ReasonCode.QUOTA_EXCEEDED, "the queue for dead letters is full")

    def _finish(self, dispatcher: Dispatcher) -> None:
        error = dispatcher.store()
        self._queues()[dispatcher.queue].ended()
        if error:
            raise SettlementError(
                ReasonCode.UNSPECIFIED_ERROR, f"the settlement is not stored yet: {error}"
            )

    async def _reject_later(
        self, client: ClientInfo, settlement: Settlement, broker: BrokerHandle
    ) -> Deny | Handled:
        """Read the messages from disk, and then reject them. While they are being read, they may be settled or
        delivered to another consumer.
        """
        try:
            messages: dict[int, Message] = {}
            for _ in range(_READS):
                dispatcher = self._dispatcher(client.client_id, settlement)
                chosen = dispatcher.holdings.chosen(settlement, client.client_id)
                wanted = [one for one in chosen if one not in messages]
                messages.update(dispatcher.loaded(wanted))
                missing = [one for one in wanted if one not in messages]
                if not missing:
                    rejected = {offset: messages[offset] for offset in chosen}
                    self._reject(dispatcher, rejected, settlement)
                    self._finish(dispatcher)
                    return _DONE
                await dispatcher.load(missing[0])
            raise SettlementError(
                ReasonCode.QUOTA_EXCEEDED, "too many messages on disk: reject fewer at a time"
            )
        except SettlementError as error:
            return Deny(error.code, str(error))
