"""One connection to one NATS server: TLS, authentication and liveness."""

import asyncio
import json
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.engine_errors import EngineError, ServerRefused
from hookmq_cluster.nats_protocol import Deliver, Parser, information

PING: Final = 2.0
"""Seconds between two PINGs."""
SILENT: Final = 5.0
"""Seconds without a byte after which a server is regarded as gone."""
FULL: Final = 64 << 20
"""Unsent bytes from which a connection is full. Messages that are not stored are then dropped."""
DEFAULT_PORT: Final = 4222
_REFUSALS: Final = ("authorization violation", "authentication expired", "authentication revoked")
"""The errors of a server that refuses a user. Its other errors may be temporary, such as too many connections."""


@dataclass(frozen=True)
class NatsOptions:
    """How to reach and to authenticate at NATS. Exactly one kind of authentication, or none.

    - `servers`: URLs that begin with ``nats://`` or ``tls://``, without user names.
    - `credentials`: the text of a ``.creds`` file. `nkey_seed`: the seed of an NKey. Both are secrets, as are `password`
      and `token`.
    - `tls`: used for servers that ask for TLS, and required from every server if it is given. `tls_first`: begin TLS
      before the server says anything.
    """

    servers: tuple[str, ...]
    name: str = "hookmq"
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed: str = field(default="", repr=False)
    credentials: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    tls_first: bool = False
    tls_hostname: str = ""
    connect_timeout: float = 5.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise EngineError("servers: at least one is required")
        for server in self.servers:
            address_of(server)
        kinds = [
            name for name in ("user", "token", "nkey_seed", "credentials") if getattr(self, name)
        ]
        if len(kinds) > 1:
            raise EngineError(f"only one of {' and '.join(kinds)} is possible")
        if self.password and not self.user:
            raise EngineError("password: a user is required with it")
        if self.tls_first and self.tls is None:
            raise EngineError("tls_first: tls is required with it")
        if self.credentials:
            _signing_key(_sections(self.credentials)[1], "credentials")
        elif self.nkey_seed:
            _signing_key(self.nkey_seed, "nkey_seed")


def address_of(server: str) -> tuple[str, int]:
    """Return host and port of a server's URL. Raises EngineError if it is not one."""
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may quote a password
        raise EngineError("servers: not a valid URL") from None
    if parts.username is not None or parts.password is not None:
        raise EngineError("servers: a URL with a user name or password; use user and password")
    if parts.scheme not in ("nats", "tls") or not host or parts.path or parts.query:
        raise EngineError(
            f"servers: {server!r} is not a URL like nats://HOST:PORT or tls://HOST:PORT"
        )
    return host, port or DEFAULT_PORT


def _signing_key(seed: str, setting: str) -> Any:
    import nkeys  # type: ignore[import-untyped]

    try:
        return nkeys.from_seed(bytearray(seed.strip().encode()))
    except (nkeys.NkeysError, ValueError):
        raise EngineError(f"{setting}: not the seed of an NKey") from None


def _sections(credentials: str) -> tuple[str, str]:
    """Return the JWT and the seed in a credentials file."""
    found: list[str] = []
    inside = False
    for line in credentials.splitlines():
        if line.startswith("-----"):
            inside = "BEGIN" in line
        elif inside and line.strip():
            found.append(line.strip())
    if len(found) != 2:
        raise EngineError("credentials: expected a JWT and a seed, as in a .creds file")
    return found[0], found[1]


class NatsConnection(asyncio.Protocol):
    """One connection. `open` it once. `lost` is called once if it ends after `open` returned.

    `info` is the server's INFO. The server can change it, for example if another server joins.
    """

    def __init__(
        self,
        options: NatsOptions,
        runtime: Runtime,
        deliver: Deliver,
        lost: Callable[[str], None],
    ) -> None:
        self.info: dict[str, Any] = {}
        self.full = False
        self.denied = ""
        """The last subject that this user may not use, as the server says."""
        self._options = options
        self._runtime = runtime
        self._lost = lost
        self._parser = Parser(deliver, self._control)
        self._transport: asyncio.Transport | None = None
        self._informed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened = False
        self._ended = False
        self._reason = ""
        self._heard = 0.0
        self._timer: Timer | None = None

    async def open(self, server: str, hostname: str = "") -> None:
        """Connect to `server` and authenticate. `hostname` is the name in its certificate, if it is not in the URL.

        Raises EngineError, and OSError if the network or TLS fails.
        """
        host, port = address_of(server)
        options = self._options
        name = options.tls_hostname or hostname or host
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(options.connect_timeout):
                first = options.tls if options.tls_first else None
                await loop.create_connection(
                    lambda: self, host, port, ssl=first, server_hostname=name if first else None
                )
                await self._informed
                wanted = options.tls is not None or server.startswith("tls:")
                if (wanted or self.info.get("tls_required")) and first is None:
                    await self._start_tls(name)
                self.write(self._greeting())
                await self._answered
        except BaseException:
            self.abort("not connected")
            raise
        if self._ended:
            raise EngineError(self._reason)
        self._opened = True
        self._beat()

    def write(self, data: bytes) -> None:
        """Send `data` after all data written earlier."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def close(self) -> None:
        """Send everything, then close the connection. `lost` is not called."""
        self._ended = True
        self._stop()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    # asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not subclasses of those of asyncio.
        self._transport = made = cast(asyncio.Transport, transport)
        made.set_write_buffer_limits(high=FULL)

    def data_received(self, data: bytes) -> None:
        """Parse `data`."""
        self._heard = self._runtime.now()
        try:
            self._parser.feed(data)
        except EngineError as error:
            self.abort(str(error))

    def pause_writing(self) -> None:
        """Drop messages that are not stored from now on."""
        self.full = True

    def resume_writing(self) -> None:
        """Drop messages no longer."""
        self.full = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection ended."""
        self._end(str(exc) if exc else "the NATS server closed the connection")

    # parts -------------------------------------------------------------------------------------------------------

    async def _start_tls(self, name: str) -> None:
        if not (self.info.get("tls_required") or self.info.get("tls_available")):
            raise EngineError("the NATS server does not offer TLS")
        context = self._options.tls or ssl.create_default_context()
        assert self._transport is not None
        transport = await asyncio.get_running_loop().start_tls(
            self._transport, self, context, server_hostname=name
        )
        assert transport is not None
        self.connection_made(transport)

    def _greeting(self) -> bytes:
        options = self._options
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "tls_required": options.tls is not None,
            "name": options.name,
            "lang": "python-hookmq",
            "version": "1",
            "protocol": 1,
            "echo": True,
            "headers": True,
            "no_responders": True,
        }
        if options.user:
            fields |= {"user": options.user, "pass": options.password}
        elif options.token:
            fields["auth_token"] = options.token
        elif options.nkey_seed or options.credentials:
            jwt, seed = "", options.nkey_seed
            if options.credentials:
                jwt, seed = _sections(options.credentials)
                fields["jwt"] = jwt
            key = _signing_key(seed, "nkey_seed")
            if not jwt:
                fields["nkey"] = key.public_key.decode()
            signature = key.sign(str(self.info.get("nonce", "")).encode())
            fields["sig"] = urlsafe_b64encode(signature).decode().rstrip("=")
            key.wipe()
        return b"CONNECT %b\r\nPING\r\n" % json.dumps(fields).encode()

    def _control(self, operation: str, rest: str) -> None:
        if operation == "PING":
            self.write(b"PONG\r\n")
        elif operation == "PONG":
            if not self._answered.done():
                self._answered.set_result(None)
        elif operation == "INFO":
            self.info.update(information(rest))
            if not self._informed.done():
                self._informed.set_result(None)
        elif operation == "-ERR":
            self._refused(rest.strip("'"))
        elif operation != "+OK":
            raise EngineError(f"the NATS server sent an unknown line: {operation[:100]!r}")

    def _refused(self, text: str) -> None:
        """Handle an error. The server closes the connection after most of them."""
        said = f"the NATS server says: {text}"
        if text.startswith("Permissions Violation"):
            # The connection goes on. A request to a subject that is denied has no other answer.
            if said == self.denied:
                return
            self.denied = said
        else:
            self._reason = said
            if not self._opened:  # the caller of `open` logs the error
                refused = any(one in text.lower() for one in _REFUSALS)
                self._fail(ServerRefused(said) if refused else EngineError(said))
                return
        self._runtime.log("warning", "cluster.nats_error", error=text)

    def _fail(self, error: Exception) -> None:
        for one in (self._informed, self._answered):
            if not one.done():
                one.set_exception(error)
                one.exception()  # asyncio must not report it, if nothing awaits it any more

    def _beat(self) -> None:
        self._timer = self._runtime.call_later(PING, self._beat)
        if self._runtime.now() - self._heard > SILENT:
            self.abort("the NATS server does not answer")
        else:
            self.write(b"PING\r\n")

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, reason: str) -> None:
        self._stop()
        if self._ended:
            return
        self._ended = True
        self._reason = self._reason or reason
        self._fail(EngineError(self._reason))
        if self._opened:
            self._lost(self._reason)
