"""The plugin's settings."""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.passwords import MAX_PASSWORD, Argon2

Others = Literal["deny", "ignore"]
NoMatch = Literal["deny", "abstain"]
_WORDS: Final = {"unknown": Others, "anonymous": Others, "no_match": NoMatch}


@dataclass(frozen=True)
class AccountsConfig:
    """Settings of `use: accounts`."""

    unknown: Others = setting(
        "deny", "user names without an account: deny or ignore (other plugins decide)"
    )
    anonymous: Others = setting(
        "deny", "clients without a user name: deny or ignore (other plugins decide)"
    )
    no_match: NoMatch = setting(
        "deny",
        "the decision if no rule of the user applies; abstain leaves it to other plugins and authz.default",
    )
    explain: bool = setting(
        True, "send the rule that refused them to MQTT 5 clients, as reason string"
    )
    max_users: int = setting(10_000, "most users", minimum=1)
    max_groups: int = setting(1000, "most groups", minimum=1)
    max_rules: int = setting(100, "most rules of one user or group", minimum=1, maximum=1000)
    min_password: int = setting(
        8, "fewest bytes of a new password", minimum=1, maximum=MAX_PASSWORD
    )
    password_limit: Size = setting(
        1024, "longest password that is verified", minimum=1, maximum=MAX_PASSWORD
    )
    threads: int = setting(2, "passwords hashed at the same time", minimum=1, maximum=8)
    queue: int = setting(
        64, "passwords that wait to be hashed; further clients get server busy", minimum=1
    )
    cache_time: Seconds = setting(
        60.0, "how long an accepted password needs no hashing; 0 for never", maximum=3600
    )
    cache_size: int = setting(10_000, "accepted passwords that are cached")
    argon2: Argon2 = field(default=Argon2(), metadata={"help": "the cost of new hashes"})

    def __post_init__(self) -> None:
        """Check values given in code. Values from a configuration file have already been checked."""
        if isinstance(self.argon2, dict):
            object.__setattr__(self, "argon2", Argon2(**self.argon2))
        for key, kind in _WORDS.items():
            if getattr(self, key) not in get_args(kind):
                known = " or ".join(get_args(kind))
                raise ConfigError(f"{key}: {getattr(self, key)!r} is not {known}")
        if self.min_password > self.password_limit:
            raise ConfigError("min_password: must not exceed password_limit")
