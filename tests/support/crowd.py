"""A store that holds many sessions of offline clients. This is the fastest way to get a broker with many clients."""

import time
from collections.abc import Iterator

from hookmq.model.client import ClientRecord, Peer
from hookmq.plugin import Plugin, hookimpl
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Store
from hookmq.storage.records import Loaded, PutSession, SessionRecord
from hookmq_testing import PluginInstance, make_plugin


class _Crowded(MemoryStore):
    def __init__(self, sessions: int) -> None:
        super().__init__()
        self._sessions = sessions

    def load(self) -> Iterator[Loaded]:
        peer = Peer("192.0.2.7", 40_000, "tcp")
        for number in range(self._sessions):
            client = ClientRecord(f"meter-{number:05}", 5, peer=peer, listener="tcp")
            yield PutSession(SessionRecord(client, 1e9, ended_at=time.time()))


def crowd(sessions: int) -> PluginInstance:
    """Return a plugin whose store has `sessions` sessions named ``meter-00000``, ``meter-00001`` and so on."""

    class CrowdedStore(Plugin):
        @hookimpl
        def provide_store(self) -> Store:
            return _Crowded(sessions)

    return make_plugin(CrowdedStore)
