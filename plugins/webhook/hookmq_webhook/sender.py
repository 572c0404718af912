"""The way to the service: requests over HTTP, bounded in time and size, and what their answers mean."""

import email.utils
import gzip
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import aiohttp
from hookmq.files import check_regular, shown_path
from yarl import URL

from hookmq_webhook.auth import Credentials, Unauthorized
from hookmq_webhook.config import TlsConfig, WebhookConfig
from hookmq_webhook.destinations import CheckedResolver, Destinations, Refused
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import Requests

AGENT: Final = "hookmq-webhook"
_AFTER: Final = frozenset({429, 503})
"""Statuses whose Retry-After counts."""
_MOVED: Final = frozenset({307, 308})
_PLACE: Final = re.compile(r"\$\{([^{}]*)\}")


class Sender:
    """One instance's way to its service. Nothing is opened before the first request. Use `send` on a running loop."""

    def __init__(
        self,
        config: WebhookConfig,
        requests: Requests,
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.sent = 0
        """Requests so far."""
        self.bytes = 0
        self.statuses: dict[int, int] = {}
        """Answers by status."""
        self._requests = requests
        self._wall = wall
        self._now = now
        self._refused = frozenset(config.retry.refused)
        self._destinations = Destinations(config.destinations)
        self._credentials: Credentials | None = None
        self._context = context_of(config.tls) if config.tls is not None else None
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            config = self.config
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=config.concurrency + 1,
                    ssl=self._context or True,
                    resolver=CheckedResolver(self._destinations),
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=config.timeout, sock_connect=config.connect_timeout
                ),
                auto_decompress=False,
                headers={"User-Agent": AGENT, "Accept": "*/*", "Accept-Encoding": "identity"},
            )
            self._credentials = Credentials(config.auth, self._fetch, self._now)
        return self._session

    async def close(self) -> None:
        """Let go of all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """One request with these. Raises nothing but CancelledError."""
        try:
            return await self._send(events)
        except TimeoutError:
            return Answer(Verdict.AGAIN, f"no answer within {self.config.timeout:g} s")
        except Refused as error:
            return Answer(Verdict.AGAIN, str(error))
        except Unauthorized as error:
            return Answer(Verdict.AGAIN, str(error))
        except (aiohttp.ClientError, OSError) as error:
            cause = error.__cause__ or getattr(error, "os_error", None)
            if isinstance(cause, Refused):
                return Answer(Verdict.AGAIN, str(cause))
            return Answer(Verdict.AGAIN, type(error).__name__)
        except ValueError as error:  # of a name or an answer that aiohttp does not understand
            return Answer(Verdict.AGAIN, type(error).__name__)

    async def _send(self, events: Sequence[Numbered]) -> Answer:
        try:
            headers, body, ours, url = self._made(events)
        except ValueError as error:
            # Of an event that cannot be put into words: no further attempt makes it better.
            return Answer(Verdict.REFUSED, f"it cannot be sent: {type(error).__name__}")
        config = self.config
        session = self._open()
        assert self._credentials is not None
        shown = await self._credentials.header()
        self.sent += 1
        self.bytes += len(body)
        for _ in range(config.redirects + 1):
            self._destinations.check_host(url.host or "")
            trusted = url.origin() == URL(config.url.partition("$")[0]).origin()
            sent = headers | ours if trusted else headers  # ours may have keys in them
            if shown and trusted:
                sent = sent | {"Authorization": shown}
            async with session.request(
                config.method.upper(), url, headers=sent, data=body, allow_redirects=False
            ) as response:
                status = response.status
                self.statuses[status] = self.statuses.get(status, 0) + 1
                await self._skim(response)
                if status in _MOVED and config.redirects:
                    moved = _moved(url, response.headers.get("Location", ""))
                    if moved is not None:
                        url = moved
                        continue
                if status == 401:
                    self._credentials.refused(shown)
                return self._meaning(status, response.headers)
        return Answer(Verdict.AGAIN, f"more than {config.redirects} redirections")

    def _made(
        self, events: Sequence[Numbered]
    ) -> tuple[dict[str, str], bytes, dict[str, str], URL]:
        """Headers, body, the headers that are configured, and the URL. Raises ValueError."""
        config = self.config
        headers, body = self._requests.encode(events)
        bodies = [body]
        if config.gzip and len(body) >= config.gzip:
            body = gzip.compress(body, 5, mtime=0)
            headers["Content-Encoding"] = "gzip"
            # What is sent, and what it was before: some frameworks decompress it for whoever verifies it.
            bodies = [body, *bodies]
        headers |= self._requests.sign(events, self._wall(), *bodies)
        values = values_of(events[0])
        ours = {name: fill_header(text, values) for name, text in config.headers.items()}
        return headers, body, ours, URL(fill_url(config.url, values), encoded=True)

    def _meaning(self, status: int, headers: Mapping[str, str]) -> Answer:
        if 200 <= status < 300:
            return Answer(Verdict.ARRIVED)
        after = retry_after(headers.get("Retry-After"), self._wall()) if status in _AFTER else None
        verdict = Verdict.REFUSED if status in self._refused else Verdict.AGAIN
        return Answer(verdict, f"status {status}", after)

    async def _skim(self, response: aiohttp.ClientResponse) -> None:
        """Read an answer, so that the connection can be used again; but not too much of it."""
        left = self.config.max_answer
        async for chunk in response.content.iter_any():
            left -= len(chunk)
            if left < 0:
                response.close()
                return

    async def _fetch(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Of tokens."""
        found = URL(url)
        self._destinations.check_host(found.host or "")
        async with self._open().post(
            found, headers=headers, data=body, allow_redirects=False
        ) as response:
            read = await response.content.read(self.config.max_answer or 65536)
            while not response.content.at_eof() and len(read) < 65536:
                more = await response.content.read(65536 - len(read))
                if not more:
                    break
                read += more
            return response.status, read


def _moved(url: URL, location: str) -> URL | None:
    """Where a redirection leads; None where that is no place to go, or one that is less protected."""
    try:
        moved = url.join(URL(location))
        moved.origin()
        (moved.raw_host or "").encode("idna")
    except ValueError:
        return None
    if moved.raw_user is not None or moved.raw_password is not None:
        return None  # of somebody else's choice
    return moved if moved.scheme == "https" or moved.scheme == url.scheme == "http" else None


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds of a Retry-After, which gives seconds or a date; None where it gives neither."""
    if text is None:
        return None
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def values_of(one: Numbered) -> dict[str, str]:
    """What ``${...}`` may name."""
    event = one.event
    return {
        "type": event.type,
        "client": event.client or "",
        "topic": event.topic or "",
        "listener": event.listener,
        "id": one.id,
    }


def fill_url(template: str, values: Mapping[str, str]) -> str:
    """The URL, each value percent-encoded as a whole: none changes where the request goes. Dots are escaped in a value of
    dots alone, which would be a path's way up."""

    def put(match: "re.Match[str]") -> str:
        value = values[match[1]]
        return quote(value, safe="") if value.strip(".") else "%2E" * len(value)

    return _PLACE.sub(put, template)


def fill_header(template: str, values: Mapping[str, str]) -> str:
    """A header's value. Raises ValueError when a value would end the line."""
    made = _PLACE.sub(lambda match: values[match[1]], template)
    if any(ord(c) < 32 or ord(c) == 127 for c in made):
        raise ValueError("a control character in a header")
    return made


def context_of(tls: TlsConfig) -> ssl.SSLContext:
    """The TLS context for requests. Blocks. Raises OSError, ssl.SSLError."""
    for path in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
        # OpenSSL does not name a missing file, and waits at a pipe.
        try:
            check_regular(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, shown_path(path)) from None
    context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    return context
