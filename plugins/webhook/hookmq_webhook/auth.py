"""Authenticate requests with a bearer token, basic authentication or OAuth 2.0 client credentials."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote, urlencode

from yarl import URL

from hookmq_webhook.config import AuthConfig, OAuth2Config
from hookmq_webhook.destinations import Destinations

EARLY: Final = 30.0
"""Seconds before expiry at which a token is renewed."""
UNKNOWN: Final = 300.0
"""Seconds for which a token is used if the service does not report its expiry."""
MAX_ANSWER: Final = 65536
"""Maximum size of a token service's response, in bytes."""


class Unauthorized(Exception):
    """No token could be obtained. The message never contains the request."""


Fetch = Callable[[str, Mapping[str, str], bytes], Awaitable[tuple[int, bytes]]]
"""Send a POST request with a URL, headers and body, and return the response's status and body.

Raises OSError, and the errors of the HTTP client.
"""
Post = Callable[[URL, Mapping[str, str], bytes, int], Awaitable[tuple[int, bytes | None]]]
"""Send a POST request like `Fetch`. The body is None if it is longer than the last argument, in bytes."""


def fetch_token(post: Post, destinations: Destinations) -> Fetch:
    """Return a `Fetch` that uses `post` and checks the destination.

    The returned function also raises Refused and Unauthorized.
    """

    async def fetch(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        target = URL(url)
        destinations.check_host(target.host or "")
        status, answer = await post(target, headers, body, MAX_ANSWER)
        if answer is None:
            raise Unauthorized("the answer of the token service is too large")
        return status, answer

    return fetch


class Credentials:
    """Creates the Authorization header for requests. Calls `fetch` to get tokens, one at a time."""

    def __init__(self, config: AuthConfig | None, fetch: Fetch, now: Callable[[], float]) -> None:
        self._oauth2 = config.oauth2 if config is not None else None
        self._fetch = fetch
        self._now = now
        self._header = ""
        self._until = float("-inf")
        self._lock = asyncio.Lock()
        self.fetched = 0
        if config is not None and config.bearer_token is not None:
            self._header = f"Bearer {config.bearer_token}"
        elif config is not None and config.username is not None:
            pair = f"{config.username}:{config.password}".encode()
            self._header = "Basic " + base64.b64encode(pair).decode()

    async def header(self) -> str:
        """Return the value of the Authorization header, or '' if there is none.

        Raises Unauthorized, and the same errors as `fetch`.
        """
        if self._oauth2 is None:
            return self._header
        if self._now() >= self._until:
            async with self._lock:
                if self._now() >= self._until:
                    await self._renew(self._oauth2)
        return self._header

    def refused(self, header: str) -> None:
        """Discard the token in `header`, because the service responded to it with 401."""
        if self._oauth2 is not None and header == self._header:
            self._until = float("-inf")

    async def _renew(self, config: OAuth2Config) -> None:
        form = {"grant_type": "client_credentials"}
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        if config.scope:
            form["scope"] = config.scope
        if config.audience:
            form["audience"] = config.audience
        if config.style == "basic":
            # RFC 6749, 2.3.1: the id and the secret are form-encoded before they are joined.
            pair = f"{quote(config.client_id, safe='')}:{quote(config.client_secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form["client_id"], form["client_secret"] = config.client_id, config.client_secret
        self.fetched += 1
        began = self._now()
        status, body = await self._fetch(config.token_url, headers, urlencode(form).encode())
        if status != 200:
            raise Unauthorized(f"the token service answered {status}")
        try:
            found = json.loads(body)
            token, kind = found["access_token"], found.get("token_type", "Bearer")
            lasts = float(found.get("expires_in") or UNKNOWN)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unauthorized("the answer of the token service is malformed") from None
        if not isinstance(token, str) or not token.isprintable() or not token.isascii():
            raise Unauthorized("the answer of the token service is malformed")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise Unauthorized("the token is not a bearer token")
        self._header = f"Bearer {token}"
        self._until = began + max(1.0, lasts - min(EARLY, lasts / 2))
