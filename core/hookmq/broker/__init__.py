"""The broker without I/O: connections, sessions, the publish pipeline, wills and expiry.

`Broker` is the entry point. The server passes it connections, the store, the hooks and a runtime.
"""

from hookmq.broker.broker import Broker
from hookmq.broker.packet_reader import PacketReader

__all__ = ["Broker", "PacketReader"]
