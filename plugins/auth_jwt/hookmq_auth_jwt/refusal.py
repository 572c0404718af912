"""Reasons to refuse a token, and the reason codes that clients receive."""

from typing import Final

from hookmq.plugin import Deny, ReasonCode

BAD: Final = ReasonCode.BAD_USER_NAME_OR_PASSWORD
"""Not a token, or not signed with a known key: 0x86 (MQTT 3.x: 4)."""
NOT_ALLOWED: Final = ReasonCode.NOT_AUTHORIZED
"""A valid token for another purpose: 0x87 (MQTT 3.x: 5)."""
UNDECIDED: Final = ReasonCode.SERVER_UNAVAILABLE
"""The keys needed to decide are not available: 0x88 (MQTT 3.x: 3)."""


class Refused(Exception):
    """A token was refused.

    `kind` is a one-word reason for metrics. `why` is the reason for the log; it never quotes the signature. The client
    receives `code` and `client_text`.
    """

    def __init__(self, kind: str, why: str, code: ReasonCode = BAD) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.code = code

    @property
    def client_text(self) -> str:
        """The reason that the client receives. It names the failed check, but not the expected value."""
        return f"token refused: {self.kind.replace('_', ' ')}"

    @property
    def verdict(self) -> Deny:
        """The verdict that refuses the client."""
        return Deny(self.code, self.client_text)


class UnknownKey(Refused):
    """No available key verifies the token, but a key that has not been fetched yet might."""


KINDS: Final = (
    "missing", "malformed", "algorithm", "unknown_key", "no_keys", "signature", "type", "expired", "not_yet", "issued",
    "issuer", "audience", "claim", "identity", "groups", "acl", "limits", "other_identity",
)  # fmt: skip
"""All values of `Refused.kind`."""
