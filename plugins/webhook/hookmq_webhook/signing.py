"""Parse the secrets and private keys that sign requests."""

from hookmq.plugin import ConfigError
from hookmq_webhook_receiver.keys import PrivateKey, key_of, private_key_of

from hookmq_webhook.config import SignConfig


def signing_keys(config: SignConfig | None) -> tuple[bytes | PrivateKey, ...]:
    """Return the keys that sign requests, newest first. Raises ConfigError with a message that contains no secret."""
    found: list[bytes | PrivateKey] = []
    for name in ("secret", "previous_secret", "private_key", "previous_private_key"):
        text = getattr(config, name, None)
        if text is not None:
            try:
                found.append(private_key_of(text) if "key" in name else key_of(text))
            except ValueError as error:
                raise ConfigError(f"sign.{name}: {error}") from None
    return tuple(found)
