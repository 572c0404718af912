"""Who published what is retained: one record for all messages of a client that was found to be the same each time."""

from hashlib import blake2b

from hookmq.types import ClientInfo, ClientRecord, Peer, Scope


class Publisher:
    """A client as `authorize` is asked about its retained messages, `uses` of them; `id` is its number in the store.
    `rights` counts how often the rights of this client alone may have changed."""

    __slots__ = ("client", "id", "key", "rights", "size", "uses")

    def __init__(self, client: ClientInfo, id: int, key: bytes, size: int) -> None:
        self.client = client
        self.id = id
        self.key = key
        self.size = size
        self.rights = 0
        self.uses = 0


class Publishers:
    """The publishers of retained messages. `rights` counts how often the rights of all may have changed."""

    __slots__ = ("_by_client", "_by_id", "_next", "_scopes", "rights")

    def __init__(self) -> None:
        self._by_client: dict[str, dict[bytes, Publisher]] = {}
        self._by_id: dict[int, Publisher] = {}
        self._next = 1
        self._scopes: dict[tuple[str, str], Scope] = {}
        self.rights = 1

    def __len__(self) -> int:
        """Publishers held."""
        return len(self._by_id)

    def find(self, client: ClientInfo) -> Publisher:
        """Return the publisher that `client` is, held already or new and of no use yet."""
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
        """Take up a publisher that is stored."""
        text = repr(_lasting(record)).encode()
        key = blake2b(text, digest_size=16).digest()
        self._hold(self._make(record, key, len(text), id))
        self._next = max(self._next, id + 1)

    def get(self, id: int) -> Publisher | None:
        """Return a publisher that is held, by its number in the store."""
        return self._by_id.get(id)

    def take(self, publisher: Publisher) -> bool:
        """Count one retained message more; whether it is the first."""
        publisher.uses += 1
        if publisher.uses > 1:
            return False
        self._hold(publisher)
        return True

    def let_go(self, publisher: Publisher) -> bool:
        """Count one retained message less; whether it was the last."""
        publisher.uses -= 1
        if publisher.uses:
            return False
        self._forget(publisher)
        return True

    def unused(self) -> list[Publisher]:
        """Forget those that were loaded and have no message, and return them."""
        found = [publisher for publisher in self._by_id.values() if not publisher.uses]
        for publisher in found:
            self._forget(publisher)
        return found

    def changed(self, client_id: str | None) -> None:
        """Have `authorize` asked again about messages of `client_id` (None: of everybody)."""
        if client_id is None:
            self.rights += 1
            return
        for publisher in self._by_client.get(client_id, {}).values():
            publisher.rights += 1

    def _make(self, record: ClientRecord, key: bytes, size: int, id: int) -> Publisher:
        client = record.client()
        place = (record.listener, record.mount_point)
        scope = self._scopes.get(place)
        if scope is None:
            scope = self._scopes[place] = client.scope
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
    """Leave out what is of one connection only: a client that comes back is the same publisher, as it was first."""
    peer = record.peer
    return record._replace(
        peer=Peer(peer.host, 0, peer.transport, peer.certificate),
        clean_start=True,
        keep_alive=0,
        connected_at=0.0,
    )
