"""The plugin's settings."""

import re
from dataclasses import dataclass
from typing import Final

from hookmq.plugin import ConfigError, Seconds, setting

_SOCKET: Final = re.compile(r"wss?://[A-Za-z0-9.\[\]:-]{1,300}(/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True)
class AdminConfig:
    """Settings of `use: admin`."""

    # fmt: off
    first_token_file: str = setting(
        "", "file for the first token, with mode 0600; a file with an earlier token is replaced; by default, the token"
        " is printed on stderr", path=True)
    failures: int = setting(
        10, "wrong tokens from one address after which it is refused; one more is allowed every 6 seconds",
        minimum=1, maximum=10_000)
    audit_entries: int = setting(
        1000, "changes to remember, and refused changes to remember; each new one deletes the oldest of its kind",
        minimum=10, maximum=50_000)
    history_interval: Seconds = setting(10.0, "time between two samples of the history", minimum=1, maximum=3600)
    history_samples: int = setting(2160, "samples in the history, which is in memory", minimum=2, maximum=20_000)
    max_tails: int = setting(8, "live tails at the same time", minimum=0, maximum=100)
    tail_rate: int = setting(
        100, "highest number of messages per second in a live tail; further messages are skipped and counted",
        minimum=1, maximum=1000)
    tail_timeout: Seconds = setting(
        5.0, "maximum time that a live tail waits for a client that does not read", minimum=0.1, maximum=60)
    backup_folder: str = setting(
        "", "folder for backups of the store; by default, the API makes none", path=True)
    max_backups: int = setting(10, "most backups in the folder; a further one is refused", minimum=1, maximum=1000)
    console_sockets: tuple[str, ...] = setting(
        (), "further WebSocket addresses to which the console may connect, such as wss://broker.example.com/mqtt")
    # fmt: on

    def __post_init__(self) -> None:
        for name in ("history_interval", "tail_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: expected a time above 0", path=(name,))
        for address in self.console_sockets:
            if not _SOCKET.fullmatch(address):
                raise ConfigError(
                    f"console_sockets: expected an address such as wss://broker.example.com/mqtt, found {address!r}",
                    path=("console_sockets",),
                )
