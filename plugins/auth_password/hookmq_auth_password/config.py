"""The plugin's configuration."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hookmq.plugin import ConfigError, Seconds, Size, setting
from hookmq_toolkit.passwords.hashes import MAX_PASSWORD, Argon2, Format

Disconnect = Literal["never", "removed", "rights", "changed"]
Anonymous = Literal["deny", "ignore", "allow"]


@dataclass(frozen=True)
class AuthPasswordConfig:
    """The user file, and the rules for all other clients."""

    path: Path = field(metadata={"help": "the user file"})
    format: Format = setting("yaml", "yaml, or mosquitto for a password_file")
    anonymous: Anonymous = setting(
        "deny", "clients without a user name: deny, ignore (other plugins decide) or allow"
    )
    unknown: Literal["deny", "ignore"] = setting(
        "deny", "user names that are not in the file: deny or ignore (other plugins decide)"
    )
    passwordless: Literal["deny", "allow"] = setting(
        "deny", "users with `hash: null` that send no password"
    )
    certificate: Literal["password", "enough"] = setting(
        "password",
        "on listeners that take the user name from the certificate: password if one is needed as well, else enough",
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
    cache_size: int = setting(10000, "accepted passwords that are cached")
    reload_interval: Seconds = setting(
        2.0, "how often the file is checked for changes; 0 for SIGHUP only", maximum=3600
    )
    disconnect: Disconnect = setting(
        "rights",
        "users whose connections are closed when the file changes: never; removed: deleted or disabled users; rights: "
        "also those with other groups or claims; changed: also those with another password",
    )
    upgrade: bool = setting(False, "replace weak hashes in the file when their users connect")
    argon2: Argon2 = field(default=Argon2(), metadata={"help": "the cost of new hashes"})

    def __post_init__(self) -> None:
        """Check values given in code. Values from a configuration file have already been checked."""
        object.__setattr__(self, "path", Path(self.path))
        if isinstance(self.argon2, dict):
            object.__setattr__(self, "argon2", Argon2(**self.argon2))
        for key, kind in (
            ("format", Format),
            ("anonymous", Anonymous),
            ("disconnect", Disconnect),
        ):
            if getattr(self, key) not in get_args(kind):
                raise ConfigError(
                    f"{key}: {getattr(self, key)!r} is not one of {', '.join(get_args(kind))}"
                )
        if 0 < self.reload_interval < 0.1:
            raise ConfigError(
                f"reload_interval: {self.reload_interval} is less than 100ms and not 0"
            )
        if self.upgrade and not self.reload_interval:
            raise ConfigError(
                "upgrade: needs reload_interval, because hashes are written at that interval"
            )
