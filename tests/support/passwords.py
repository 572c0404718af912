"""Users with cheap hashes, for tests of hookmq-auth-password."""

from collections.abc import Callable

from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_testing import Harness
from hookmq_toolkit.passwords.hashes import Argon2, Hash, make, verify

Make = Callable[..., Harness]
CHEAP = Argon2(1 << 20, 1, 1)


def cheap(password: bytes) -> str:
    """Return an argon2id hash that takes a millisecond to compute."""
    return make(password, "yaml", CHEAP)


ALICE, BOB = cheap(b"secret"), cheap(b"hunter2")
USERS = f"""\
version: 1
users:
  alice:
    hash: '{ALICE}'
    groups: [meters, admins]
    claims: {{tenant: acme, level: 3}}
  bob:
    hash: '{BOB}'
  carol:
    enabled: false
    hash: '{ALICE}'
  door:
    hash: null
    groups: [doors]
"""


def of(harness: Harness) -> AuthPasswordPlugin:
    """Return a harness's password plugin."""
    instance = harness.hooks.instance("users")
    assert instance is not None
    assert isinstance(instance.plugin, AuthPasswordPlugin)
    return instance.plugin


MOSQUITTO = (
    "alice:$7$101$TmYT+Q7sb5hxfltS$vqpNBjlHWe6p3pffOesT3dyO9WehVqVDkuduFdx2u7od1/yojVDLo3kMOWzn5iT8dMnpiieN5eBReI/oXGXn/A=="
    "\nbob:$6$Eimbgna5wUEVda2c$Y6QBkbVVxTUbPQkllCIEGyNMg4YR2s4uoqJESfb3zbU5O+qCdYmi45wcYWErCnFM9QK6za09YCOXXAfnUpTd2A==\n"
)
"""A password file written by mosquitto_passwd 2.0.11. The passwords are secret and hunter2."""


class Verified:
    """Records every password verification: the scheme, and whether the verification succeeded."""

    def __init__(self) -> None:
        self.calls: list[tuple[Hash, bytes]] = []

    def __call__(self, hash: Hash, password: bytes) -> bool:
        self.calls.append((hash, password))
        return verify(hash, password)
