"""The publishers of retained messages. All messages of one client share one record."""

from hashlib import blake2b

from hookmq.model.client import ClientInfo, ClientRecord, Peer, Scope


class Publisher:
    """A client with retained messages, as `authorize` sees it. `uses` is the number of these messages, and `id` is the
    publisher's number in the store. `recorded` is true if the store has a record of the publisher. `rights` is
    incremented whenever the publisher's permissions may have changed.
    """

    __slots__ = ("client", "id", "key", "recorded", "rights", "size", "uses")

    def __init__(self, client: ClientInfo, id: int, key: bytes, size: int) -> None:
        self.client = client
        self.id = id
        self.key = key
        self.size = size
        self.rights = 0
        self.uses = 0
        self.recorded = False


class Publishers:
    """The publishers of retained messages. `rights` is incremented whenever the permissions of all clients may have
    changed."""

    __slots__ = ("_by_client", "_by_id", "_next", "_scopes", "rights")

    def __init__(self) -> None:
        self._by_client: dict[str, dict[bytes, Publisher]] = {}
        self._by_id: dict[int, Publisher] = {}
        self._next = 1
        self._scopes: dict[tuple[str, str], Scope] = {}
        self.rights = 1

    def __len__(self) -> int:
        """Return the number of publishers."""
        return len(self._by_id)

    def find(self, client: ClientInfo) -> Publisher:
        """Return the publisher for `client`, creating it if necessary. A new publisher has no messages yet."""
        known = client._publisher
        if isinstance(known, Publisher) and known.uses:
            return known
        record = client.record()
        text = repr(_lasting(record)).encode()
        key = blake2b(text, digest_size=16).digest()
        found = self._by_client.get(client.client_id, {}).get(key)
        if found is None:
            found = self._make(record, key, len(text), self._next)
            self._next += 1
        client._publisher = found
        return found

    def load(self, id: int, record: ClientRecord) -> None:
        """Add a publisher loaded from the store."""
        text = repr(_lasting(record)).encode()
        key = blake2b(text, digest_size=16).digest()
        loaded = self._make(record, key, len(text), id)
        loaded.recorded = True
        self._hold(loaded)
        self._next = max(self._next, id + 1)

    def get(self, id: int) -> Publisher | None:
        """Return the known publisher with this number in the store, or None."""
        return self._by_id.get(id)

    def take(self, publisher: Publisher) -> bool:
        """Count a new retained message. Return whether it is the publisher's first."""
        publisher.uses += 1
        if publisher.uses > 1:
            return False
        self._hold(publisher)
        return True

    def let_go(self, publisher: Publisher) -> bool:
        """Count the removal of a retained message. Return whether it was the publisher's last."""
        publisher.uses -= 1
        if publisher.uses:
            return False
        self._forget(publisher)
        return True

    def unused(self) -> list[Publisher]:
        """Remove the loaded publishers that have no messages, and return them."""
        found = [publisher for publisher in self._by_id.values() if not publisher.uses]
        for publisher in found:
            self._forget(publisher)
        return found

    def changed(self, client_id: str | None) -> None:
        """Require a new `authorize` decision for messages from `client_id`, or from all clients if it is None."""
        if client_id is None:
            self.rights += 1
            return
        for publisher in self._by_client.get(client_id, {}).values():
            publisher.rights += 1

    def _make(self, record: ClientRecord, key: bytes, size: int, id: int) -> Publisher:
        client = record.client()
        scope_key = (record.listener, record.mount_point)
        scope = self._scopes.get(scope_key)
        if scope is None:
            scope = self._scopes[scope_key] = client.scope
        client.scope = scope
        return Publisher(client, id, key, size)

    def _hold(self, publisher: Publisher) -> None:
        self._by_id[publisher.id] = publisher
        client_id = publisher.client.client_id
        same = self._by_client.get(client_id)
        if same is None:
            same = self._by_client[client_id] = {}
        same[publisher.key] = publisher

    def _forget(self, publisher: Publisher) -> None:
        self._by_id.pop(publisher.id, None)
        client_id = publisher.client.client_id
        same = self._by_client.get(client_id)
        if same is not None and same.get(publisher.key) is publisher:
            del same[publisher.key]
            if not same:
                del self._by_client[client_id]


def _lasting(record: ClientRecord) -> ClientRecord:
    """Return `record` without the fields that belong to one connection, so that a returning client
    counts as the same publisher.
    """
    peer = record.peer
    return record._replace(
        peer=Peer(peer.host, 0, peer.transport, peer.certificate),
        clean_start=True,
        keep_alive=0,
        connected_at=0.0,
    )
