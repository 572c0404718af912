"""What the plugin can be told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_auth_password.hashes import MAX_PASSWORD, Argon2, Format

Disconnect = Literal["never", "removed", "rights", "changed"]
Anonymous = Literal["deny", "ignore", "allow"]


@dataclass(frozen=True)
class AuthPasswordConfig:
    """Where the users are, and who else may come in."""

    path: Path = field(metadata={"help": "the file of users"})
    format: Format = setting("yaml", "how it is written: yaml, or mosquitto for a password_file")
    anonymous: Anonymous = setting(
        "deny", "clients without a user name: deny, ignore (other plugins decide), allow"
    )
    unknown: Literal["deny", "ignore"] = setting(
        "deny", "user names that the file does not have: deny, ignore (other plugins decide)"
    )
    passwordless: Literal["deny", "allow"] = setting(
        "deny", "users with hash null who send no password"
    )
    certificate: Literal["password", "enough"] = setting(
        "password",
        "on listeners whose user name is that of the client certificate: whether the password is needed as well",
    )
    password_limit: Size = setting(
        1024, "longest password that is looked at", minimum=1, maximum=MAX_PASSWORD
    )
    threads: int = setting(2, "passwords hashed at once", minimum=1, maximum=8)
    queue: int = setting(64, "passwords that wait for that; beyond, server busy", minimum=1)
    cache_time: Seconds = setting(
        60.0, "how long a right password is remembered; 0 never", maximum=3600
    )
    cache_size: int = setting(10000, "right passwords remembered")
    reload_interval: Seconds = setting(
        2.0, "how often the file is looked at; 0 leaves it to SIGHUP", maximum=3600
    )
    disconnect: Disconnect = setting(
        "rights",
        "whose connections end when the file changes: never; removed: users that are gone or disabled; rights: also "
        "those with other groups or claims; changed: also those with another password",
    )
    upgrade: bool = setting(False, "write a new hash at login where the old one is weaker")
    argon2: Argon2 = field(default=Argon2(), metadata={"help": "what new hashes cost"})

    def __post_init__(self) -> None:
        """For whoever embeds it; a configuration's file is checked before."""
        object.__setattr__(self, "path", Path(self.path))
        if isinstance(self.argon2, dict):
            object.__setattr__(self, "argon2", Argon2(**self.argon2))
        for key, kind in (
            ("format", Format),
            ("anonymous", Anonymous),
            ("disconnect", Disconnect),
        ):
            if getattr(self, key) not in get_args(kind):
                raise ConfigError(f"{key}: it is one of {', '.join(get_args(kind))}")
        if 0 < self.reload_interval < 0.1:
            raise ConfigError("reload_interval: 100ms or more, or 0")
        if self.upgrade and not self.reload_interval:
            raise ConfigError("upgrade: it needs reload_interval, which says how often it writes")
