"""Why a token is refused, and with which code the client is told."""

from typing import Final

from hookmq.plugin import Deny, ReasonCode

BAD: Final = ReasonCode.BAD_USER_NAME_OR_PASSWORD
"""The token is none, or none that anybody vouches for: 0x86, in MQTT 3.x 4."""
NOT_ALLOWED: Final = ReasonCode.NOT_AUTHORIZED
"""A good token that is not for this: 0x87, in MQTT 3.x 5."""
UNDECIDED: Final = ReasonCode.SERVER_UNAVAILABLE
"""The keys that could tell are not there: 0x88, in MQTT 3.x 3."""


class Refused(Exception):
    """A token is not accepted. `kind` is one word, for metrics; `why` a few, which never quote the token's signature; the
    client is told `code` and `told`."""

    def __init__(self, kind: str, why: str, code: ReasonCode = BAD) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.code = code

    @property
    def told(self) -> str:
        """What the client may know: which check it was, not what was expected."""
        return f"token refused: {self.kind.replace('_', ' ')}"

    @property
    def verdict(self) -> Deny:
        """The answer to the client."""
        return Deny(self.code, self.told)


class UnknownKey(Refused):
    """No key that is there verifies the token, but one that is not there yet might."""


KINDS: Final = (
    "missing", "malformed", "algorithm", "unknown_key", "no_keys", "signature", "type", "expired", "not_yet", "issued",
    "issuer", "audience", "claim", "identity", "groups", "acl", "limits", "other_identity",
)  # fmt: skip
"""Every `Refused.kind`."""
