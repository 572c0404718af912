"""How to reach a broker, and how long to wait."""

import random
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow. The first takes `initial` seconds, and each further one `multiplier` times as long, up to
    `maximum`. Each wait is shortened by a random share of up to `jitter`, so that clients do not all return at once.
    """

    initial: float = 0.1
    multiplier: float = 2.0
    maximum: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= self.maximum:
            raise ValueError(f"initial must be from 0 to maximum, not {self.initial}")
        if self.multiplier < 1:
            raise ValueError(f"multiplier must be at least 1, not {self.multiplier}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, not {self.jitter}")

    def delay(self, attempt: int) -> float:
        """Return how many seconds to wait after failure number `attempt`, counted from 1."""
        # A float overflows at 2 ** 1024.
        wait = min(self.maximum, self.initial * self.multiplier ** min(attempt - 1, 64))
        return wait * (1 - self.jitter * random.random())


@dataclass(frozen=True, slots=True)
class Options:
    """A broker's address and the client's identity."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    username: str | None
    password: str | None = field(repr=False)
    keepalive: int
    timeout: float
    reconnect: Backoff

    @property
    def address(self) -> str:
        """Return the host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_options(
    url: str,
    *,
    username: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    keepalive: int = 30,
    timeout: float = 30.0,
    reconnect: Backoff | None = None,
) -> Options:
    """Return the options from a URL and the arguments, which take precedence over the URL.

    Raises ValueError if the URL is not ``mqtt://[USER[:PASSWORD]@]HOST[:PORT]``, or mqtts.
    """
    form = "expected mqtt://[USER[:PASSWORD]@]HOST[:PORT], or mqtts"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"invalid URL: {error}; {form}") from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"invalid URL: the scheme is {parts.scheme!r}; {form}")
    if not parts.hostname:
        raise ValueError(f"invalid URL: it has no host; {form}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"invalid URL: it continues after the port; {form}")
    if tls is not None and parts.scheme == "mqtt":
        raise ValueError("a TLS context needs a URL that begins with mqtts://")
    if parts.scheme == "mqtts" and tls is None:
        tls = ssl.create_default_context()
    if not 1 <= keepalive <= 65535:
        raise ValueError(f"keepalive must be from 1 to 65535 seconds, not {keepalive}")
    if timeout <= 0:
        raise ValueError(f"timeout must be above 0 seconds, not {timeout}")
    if username is None and parts.username:
        username = unquote(parts.username)
    if password is None and parts.password:
        password = unquote(parts.password)
    if password is not None and username is None:
        username = ""
    return Options(
        parts.hostname, port or _PORTS[parts.scheme], tls, username, password, keepalive, timeout, reconnect or Backoff()
    )  # fmt: skip
