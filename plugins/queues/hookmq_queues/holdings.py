"""Track messages that consumers have acknowledged with PUBACK but not yet settled. This applies to groups with explicit
settlement.
"""

from typing import Final

from hookmq.plugin import ReasonCode

from hookmq_queues.consumers import Consumer, Consumers
from hookmq_queues.group import Group, Lease
from hookmq_queues.settlement import Settlement, SettlementError, impossible

_Key = tuple[str, str]


class Holdings:
    """Tracks which messages each of a group's consumers holds, and which consumer may settle a message.

    A consumer holds a message from the moment it is delivered. It stops holding the message once the delivery has ended
    and the message has been settled or taken away.
    """

    def __init__(self, group: Group, consumers: Consumers) -> None:
        self._group: Final = group
        self._consumers: Final = consumers
        self._held: dict[_Key, dict[int, Consumer]] = {}
        self._late: dict[int, str] = {}
        """The client that had a message until its lease expired."""
        self.reasons: dict[int, str] = {}
        """The reason given in the last nack of each message."""

    def keep(self, consumer: Consumer, offset: int) -> None:
        """Record that a consumer has acknowledged the delivery of a message that it leases."""
        self._held.setdefault(consumer.key, {})[offset] = consumer
        self._consumers.received(consumer)

    def drop(self, offset: int, key: _Key) -> None:
        """Record that a lease has ended."""
        held = self._held.get(key)
        if held is None:
            return
        consumer = held.pop(offset, None)
        if not held:
            del self._held[key]
        if consumer is not None:
            self._consumers.freed(consumer)

    def expired(self, offset: int, lease: Lease) -> None:
        """Record that a lease has expired. Its consumer may still settle the message until another consumer gets it."""
        key = lease.consumer
        assert isinstance(key, tuple)
        self.drop(offset, key)
        self._late[offset] = key[0]

    def leased(self, offset: int) -> None:
        """Record that a message has been leased again."""
        self._late.pop(offset, None)

    def settled(self, offset: int) -> None:
        """Record that a message was settled."""
        self._late.pop(offset, None)
        self.reasons.pop(offset, None)

    def prune(self) -> None:
        """Take back messages whose leases have ended without a call to `drop`."""
        leases, unsettled = self._group.leases, self._group.unsettled
        for key in list(self._held):
            for offset in self.held_by(key):
                if offset not in leases:
                    self.drop(offset, key)
        for known in (self._late, self.reasons):
            for offset in [one for one in known if one not in unsettled]:
                del known[offset]

    def held_by(self, key: _Key) -> list[int]:
        """Return the offsets of messages that a consumer has acknowledged but not settled."""
        return list(self._held.get(key, ()))

    def chosen(self, settlement: Settlement, client_id: str) -> list[int]:
        """Return the offsets that a client's settlement applies to, without duplicates.

        The client must hold each offset that is named individually. A range stands for all offsets in it that the
        client holds, of which there must be at least one. Raises SettlementError otherwise.
        """
        found: dict[int, None] = {}
        late = settlement.verb != "$nack"
        for first, last in settlement.ranges:
            held = [one for one in range(first, last + 1) if self._holds(one, client_id, late)]
            if not held:
                raise self._refusal(first, settlement, client_id)
            found.update(dict.fromkeys(held))
        return list(found)

    def _holds(self, offset: int, client_id: str, late: bool) -> bool:
        lease = self._group.leases.get(offset)
        if lease is None:
            return late and self._late.get(offset) == client_id
        assert isinstance(lease.consumer, tuple)
        return bool(lease.consumer[0] == client_id)

    def _refusal(self, offset: int, settlement: Settlement, client_id: str) -> SettlementError:
        name = f"{settlement.queue}:{offset}"
        group = self._group
        if offset in group.leases:
            return SettlementError(
                ReasonCode.NOT_AUTHORIZED, f"{name} is held by another consumer of the group"
            )
        if self._late.get(offset) == client_id:
            return impossible(f"the time to settle {name} is over: it will be delivered again")
        if offset >= group.next or (offset in group.unsettled and not group.attempts(offset)):
            return impossible(f"{name} was not delivered to the group")
        if offset not in group.unsettled:
            return impossible(f"{name} is settled already")
        return SettlementError(
            ReasonCode.NOT_AUTHORIZED, f"{name} is not held by this client: it waits for a consumer"
        )
