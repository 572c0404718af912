"""Asking a filtering service: bounded in number, size and time, and left alone while it is down."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
from hookmq.breaker import Ask, Breaker
from yarl import URL

from hookmq_webhook.auth import Credentials, Unauthorized
from hookmq_webhook.destinations import CheckedResolver, Destinations
from hookmq_webhook.filter_config import FilterPluginConfig

AGENT: Final = "hookmq-webhook-filter"
_NOT_WELL: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a service that is not well, as against one that does not understand."""


class Unavailable(Exception):
    """The service could not be asked, or did not answer: nothing is decided. It never holds what was sent."""


class Counts:
    """What the exporter shows."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.seconds = 0.0
        self.refused = 0
        self.waiting = 0
        self.running = 0


class Service:
    """One plugin's way to its service. To be made and used on a running loop; `close` ends what is under way."""

    def __init__(
        self,
        config: FilterPluginConfig,
        context: ssl.SSLContext | None,
        now: Callable[[], float],
    ) -> None:
        self.counts = Counts()
        self.breaker = Breaker(config.breaker_failures, config.breaker_pause, now)
        self._config = config
        self._now = now
        self._slots = asyncio.Semaphore(config.max_parallel)
        self._url = URL(config.url, encoded=True)
        self._destinations = Destinations(config.destinations)
        self._credentials = Credentials(config.auth, self._fetch, now)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=config.max_parallel + 1,
                ssl=context or True,
                resolver=CheckedResolver(self._destinations),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            headers={
                "User-Agent": AGENT,
                "Accept": "application/json",
                "Accept-Encoding": "identity",
            },
        )

    async def close(self) -> None:
        """Let go of all connections."""
        await self._session.close()

    async def ask(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer, read in full, within the configured time; waiting counts. Raises
        Unavailable. May be cancelled at any time."""
        counts = self.counts
        if self._slots.locked() and counts.waiting >= self._config.max_waiting:
            counts.refused += 1
            raise Unavailable(f"{counts.waiting} requests are waiting already")
        leave: Ask | None = None
        try:
            async with asyncio.timeout(self._config.timeout):
                await self._turn()
                counts.running += 1
                began = self._now()
                try:
                    leave = self.breaker.ask()
                    if leave is None:
                        counts.refused += 1
                        raise Unavailable(
                            "the service failed too often and is left alone for a while"
                        )
                    answer = await self._attempts(headers, body)
                    leave.end(True)
                    return answer
                finally:
                    counts.running -= 1
                    counts.seconds += self._now() - began
                    self._slots.release()
        except (TimeoutError, Unavailable) as error:
            if leave is not None:
                leave.end(False)
                counts.failures += 1
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"no answer within {self._config.timeout:g} s") from None
        finally:
            if leave is not None:
                leave.end(None)  # the publisher left: nothing is known

    async def _turn(self) -> None:
        self.counts.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.counts.waiting -= 1

    async def _attempts(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """A connection that was kept may end at the very moment it is used again: that is no failure of the service."""
        try:
            return await self._once(headers, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
            pass
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(type(error).__name__) from None
        try:
            return await self._once(headers, body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(type(error).__name__) from None

    async def _once(self, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self._destinations.check_host(self._url.host or "")
        self.counts.requests += 1
        sent = dict(headers)
        try:
            shown = await self._credentials.header()
        except Unauthorized as error:
            raise Unavailable(str(error)) from None
        if shown:
            sent["Authorization"] = shown
        async with self._session.post(
            self._url, headers=sent, data=body, allow_redirects=False
        ) as response:
            if response.status in _NOT_WELL:
                raise Unavailable(f"status {response.status}")
            if response.status == 401:
                self._credentials.refused(shown)
            return response.status, await self._read(response, self._config.max_answer)

    async def _read(self, response: aiohttp.ClientResponse, limit: int) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise Unavailable(f"an answer of more than {limit} bytes")
        return bytes(body)

    async def _fetch(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Of tokens."""
        found = URL(url)
        self._destinations.check_host(found.host or "")
        async with self._session.post(
            found, headers=headers, data=body, allow_redirects=False
        ) as response:
            return response.status, await self._read(response, 65536)
