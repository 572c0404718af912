"""What happens in HookMQ reaches HTTP services: in order, signed, and kept until it arrived.

The plugin is `hookmq_webhook.plugin`. Receivers have what they need here, and it needs no broker:

    verify(request.headers, body, secrets)  # raises VerificationError
    for event in read(request.headers, body):
        if ledger.take(event):
            ...
"""

from hookmq_webhook.receive import Ledger, Received, inflate, read
from hookmq_webhook.signature import VerificationError, new_secret, verify

__all__ = ["Ledger", "Received", "VerificationError", "inflate", "new_secret", "read", "verify"]
