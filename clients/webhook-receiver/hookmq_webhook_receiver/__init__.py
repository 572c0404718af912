"""Receive the events that the `webhook` plugin of a HookMQ broker sends. This package does not depend on the broker.

receiver = Receiver(["whsec_..."])
for event in receiver.read(request.headers, body):  # raises VerificationError, ValueError
    with receiver.once(event) as new:
        if new:
            ...
"""

from hookmq_webhook_receiver.apps import asgi_app, wsgi_app
from hookmq_webhook_receiver.events import Received, inflate, read
from hookmq_webhook_receiver.keys import new_private_key, new_secret, public_key
from hookmq_webhook_receiver.ledger import Ledger
from hookmq_webhook_receiver.receiver import (
    Busy,
    Receiver,
    RecentIds,
    SeenIds,
    TooLarge,
    status_of,
)
from hookmq_webhook_receiver.signature import VerificationError, sign, verify

__all__ = [
    "Busy", "Ledger", "Received", "Receiver", "RecentIds", "SeenIds", "TooLarge", "VerificationError", "asgi_app",
    "inflate", "new_private_key", "new_secret", "public_key", "read", "sign", "status_of", "verify", "wsgi_app",
]  # fmt: skip
