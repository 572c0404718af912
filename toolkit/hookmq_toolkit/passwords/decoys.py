"""Hashes that are verified for nonexistent users, so that the duration of a login does not reveal which names exist."""

import hmac
from collections.abc import Sequence

from hookmq_toolkit.passwords.hashes import Argon2, Hash, read


def nobody(argon2: Argon2) -> Hash:
    """Return a hash that matches no password and costs as much as a new one."""
    cost = f"m={argon2.memory >> 10},t={argon2.passes},p={argon2.lanes}"
    return read(f"$argon2id$v=19${cost}${'A' * 22}${'A' * 43}", "yaml")


def choose_decoy(hashes: Sequence[Hash], secret: bytes, name: str) -> Hash:
    """Return one of `hashes`, which must not be empty. The same name always gets the same hash.

    Pass the hashes of the existing users. A login by an unknown user then takes as long as a login by one of them, even
    if they have several kinds of hashes. `secret` makes the choice unpredictable.
    """
    digest = hmac.digest(secret, name.encode("utf-8", "surrogatepass"), "sha256")
    return hashes[int.from_bytes(digest[:8]) % len(hashes)]
