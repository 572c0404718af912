"""Send HookMQ events to HTTP services, signed and in order, and retry until they arrive.

The plugin is in `hookmq_webhook.plugin`. Receivers import this package, which does not need a broker:

    verify(request.headers, body, secrets)  # raises VerificationError
    for event in read(request.headers, body):
        if ledger.take(event):
            ...
"""

from hookmq_webhook.receive import Ledger, Received, inflate, read
from hookmq_webhook.signature import VerificationError, new_secret, verify

__all__ = ["Ledger", "Received", "VerificationError", "inflate", "new_secret", "read", "verify"]
