"""Verify and create password hashes in threads, with limits on their cost and on the number of waiting calls.

Needs the extra ``passwords``: ``hookmq-toolkit[passwords]``.
"""

from hookmq_toolkit.passwords.cache import Cache
from hookmq_toolkit.passwords.checker import Checker
from hookmq_toolkit.passwords.decoys import choose_decoy, nobody
from hookmq_toolkit.passwords.hashes import (
    MAX_PASSWORD,
    Argon2,
    Hash,
    make,
    outdated,
    prepare,
    read,
    to_yaml,
    verify,
)
from hookmq_toolkit.passwords.pool import Busy, Pool, neighbours
from hookmq_toolkit.passwords.prompt import add_password_options, read_password

__all__ = [
    "MAX_PASSWORD", "Argon2", "Busy", "Cache", "Checker", "Hash", "Pool", "add_password_options", "choose_decoy", "make",
    "neighbours", "nobody", "outdated", "prepare", "read", "read_password", "to_yaml", "verify",
]  # fmt: skip
