"""Send events over HTTP, within limits on time and size, and interpret the responses."""

import email.utils
import gzip
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp.resolver import ThreadedResolver
from hookmq_toolkit.templates import Template
from hookmq_toolkit.tls_client import client_context
from yarl import URL

from hookmq_webhook.auth import Credentials, Unauthorized, fetch_token
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.destinations import CheckedResolver, Destinations
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.failures import REDIRECT, STATUS, UNSENDABLE, failure
from hookmq_webhook.http_client import HttpClient, system_context
from hookmq_webhook.http_connection import ExchangeFailed, Response
from hookmq_webhook.placeholders import Unsendable, filled_header, filled_url, values_of
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import Requests

AGENT: Final = "hookmq-webhook"
_AFTER: Final = frozenset({429, 503})
"""Statuses for which the Retry-After header is honored."""
_MOVED: Final = frozenset({307, 308})


class Sender:
    """Sends one plugin instance's events to its service. It opens no connection before the first request.

    The constructor reads the TLS files, so it blocks and may raise OSError. Call `send` on a
    running event loop.
    """

    def __init__(
        self,
        config: WebhookConfig,
        requests: Requests,
        now: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.sent = 0
        """Number of requests sent."""
        self.bytes = 0
        """Total size of the request bodies sent, in bytes."""
        self.statuses: dict[int, int] = {}
        """Number of responses by status."""
        self._requests = requests
        self._wall = wall
        self._now = now
        self._refused = frozenset(config.retry.refused)
        self._gone = frozenset(config.disable.statuses) - self._refused
        self._destinations = Destinations(config.destinations)
        self._url = Template(config.url)
        self._origin = URL(config.url.partition("$")[0]).origin()
        self._headers = {name: Template(text) for name, text in config.headers.items()}
        templates = (self._url, *self._headers.values())
        self._fixed: tuple[dict[str, str], URL] | None = None
        """The configured headers and the URL, if they contain no placeholders."""
        if not any(one.names for one in templates):
            self._fixed = self._filled(str)
        self._credentials: Credentials | None = None
        self._context = client_context(config.tls) if config.tls is not None else system_context()
        self._client: HttpClient | None = None

    def _open(self) -> HttpClient:
        if self._client is None:
            config = self.config
            # A proxy looks up the addresses itself, and its own address comes from the configuration.
            resolver = ThreadedResolver()
            self._client = HttpClient(
                AGENT,
                CheckedResolver(self._destinations, resolver) if config.proxy is None else resolver,
                self._context,
                config.timeout,
                config.connect_timeout,
                config.proxy,
            )
            fetch = fetch_token(self._post, self._destinations)
            self._credentials = Credentials(config.auth, fetch, self._now)
        return self._client

    async def _post(
        self, url: URL, headers: Mapping[str, str], body: bytes, limit: int
    ) -> tuple[int, bytes | None]:
        """Implement `hookmq_webhook.auth.Post`."""
        response = await self._open().request("POST", url, headers, body, limit)
        return response.status, response.body if response.whole else None

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """Send one request with `events`, and return the result. Raises only CancelledError."""
        try:
            return await self._send(events)
        # ValueError: a host name that cannot be encoded, or a value that a header cannot contain
        except (ExchangeFailed, OSError, Unauthorized, ValueError) as error:
            return Answer(Verdict.AGAIN, failure(error, self.config))

    async def _send(self, events: Sequence[Numbered]) -> Answer:
        try:
            headers, body, configured, url = self._request(events)
        except ValueError as error:
            # The events cannot be encoded, and another attempt would not change that.
            reason = str(error) if isinstance(error, Unsendable) else type(error).__name__
            return Answer(Verdict.REFUSED, f"{UNSENDABLE}: {reason}")
        config = self.config
        client = self._open()
        assert self._credentials is not None
        authorization = await self._credentials.header()
        self.sent += 1
        self.bytes += len(body)
        for _ in range(config.redirects + 1):
            self._destinations.check_host(url.host or "")
            trusted = (self._fixed is not None and url is self._fixed[1]) or (
                url.origin() == self._origin
            )
            sent = (
                headers | configured if trusted else headers
            )  # configured headers may contain keys
            if authorization and trusted:
                sent = sent | {"Authorization": authorization}
            response = await client.request(
                config.method.upper(), url, sent, body, config.max_answer
            )
            self.count(response)
            status = response.status
            if status in _MOVED and config.redirects:
                moved = _moved(url, response.headers.get("location", ""))
                if moved is not None:
                    url = moved
                    continue
            if status == 401:
                self._credentials.refused(authorization)
            return self._meaning(status, response.headers)
        return Answer(Verdict.AGAIN, f"{REDIRECT}: more than {config.redirects}")

    def count(self, response: Response) -> None:
        """Count a response."""
        self.statuses[response.status] = self.statuses.get(response.status, 0) + 1

    def _request(
        self, events: Sequence[Numbered]
    ) -> tuple[dict[str, str], bytes, dict[str, str], URL]:
        """Return the headers, the body, the configured headers and the URL of a request. Raises ValueError."""
        config = self.config
        headers, body = self._requests.encode(events)
        bodies = [body]
        if config.gzip and len(body) >= config.gzip:
            body = gzip.compress(body, 5, mtime=0)
            headers["Content-Encoding"] = "gzip"
            # Sign both forms, because some frameworks decompress a body before it is verified.
            bodies = [body, *bodies]
        headers |= self._requests.sign(events, self._wall(), *bodies)
        return headers, body, *(self._fixed or self._filled(values_of(events[0])))

    def _filled(self, value: Callable[[str], str]) -> tuple[dict[str, str], URL]:
        """Return the configured headers and the URL with the values of an event. Raises ValueError."""
        configured = {name: filled_header(name, one, value) for name, one in self._headers.items()}
        return configured, URL(filled_url(self._url, value), encoded=True)

    def _meaning(self, status: int, headers: Mapping[str, str]) -> Answer:
        if 200 <= status < 300:
            return Answer(Verdict.ARRIVED)
        after = retry_after(headers.get("retry-after"), self._wall()) if status in _AFTER else None
        verdict = Verdict.AGAIN
        if status in self._refused:
            verdict = Verdict.REFUSED
        elif status in self._gone:
            verdict = Verdict.GONE
        return Answer(verdict, f"{STATUS} {status}", after)


def _moved(url: URL, location: str) -> URL | None:
    """Return the target of a redirect, or None if it is not allowed.

    Invalid targets, targets with credentials, and redirects from https to http are not allowed.
    """
    try:
        moved = url.join(URL(location))
        moved.origin()
        (moved.raw_host or "").encode("idna")
    except ValueError:
        return None
    if moved.raw_user is not None or moved.raw_password is not None:
        return None  # the target must not choose our credentials
    return moved if moved.scheme == "https" or moved.scheme == url.scheme == "http" else None


def retry_after(text: str | None, now: float) -> float | None:
    """Return the delay in seconds of a Retry-After header, or None if it is missing or malformed.

    The header contains a number of seconds or a date.
    """
    if text is None:
        return None
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
