"""The broker itself, without I/O: connections, sessions, the publish pipeline, wills and expiry.

`Broker` is the door; the shell brings connections to it and the store, the hooks and a runtime into it.
"""

from hookmq.broker.broker import Broker
from hookmq.broker.connection import Connection

__all__ = ["Broker", "Connection"]
