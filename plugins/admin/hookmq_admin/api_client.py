"""The API client that the commands use. It needs only the standard library."""

import json
import os
import ssl
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from hookmq.plugin import ConfigError, HookMQError
from hookmq.server_api import is_loopback

URL: Final = "HOOKMQ_ADMIN_URL"
TOKEN: Final = "HOOKMQ_ADMIN_TOKEN"
DEFAULT_URL: Final = "http://127.0.0.1:9090/plugins/admin"
MAX_ANSWER: Final = 64 << 20
PAGE: Final = 100
"""Number of items to request per page: the maximum that every listing allows."""


class RequestRefused(HookMQError):
    """The API refused a request, or could not be reached. `status` is 0 if there was no response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BrokerUnreachable(RequestRefused):
    """There is no connection to the API."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options for the API's address and the token to use."""
    add = parser.add_argument
    add("--url", help=f"where the plugin is (default: ${URL}, or {DEFAULT_URL})")
    add(
        "--token-file", metavar="FILE", help=f"file with the token (default: the token in ${TOKEN})"
    )
    add("--ca-file", metavar="FILE", help="PEM file with the CA certificates to trust")
    add("--timeout", type=float, default=15.0, metavar="SECONDS", help="maximum time to wait")
    add("--json", action="store_true", help="print JSON")


class NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another address."""

    def redirect_request(self, *arguments: Any) -> None:
        """Return None, which turns the redirect into an error."""


class ApiClient:
    """Sends requests to the API. If a request fails, raises RequestRefused with the reason."""

    def __init__(self, url: str, token: str, ca_file: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"option --url: expected http://HOST:PORT/plugins/admin, found {url!r}"
            )
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ConfigError(
                f"option --url: the token would be sent to {parts.hostname} in clear text", hint="use https"
            )  # fmt: skip
        self._base = f"{url.rstrip('/')}/api/v1"
        self._token = token
        self._timeout = timeout
        handlers: list[BaseHandler] = [NoRedirects()]
        if parts.scheme == "http":
            handlers.append(ProxyHandler({}))  # a token in clear text stays on this machine
        else:
            handlers.append(HTTPSHandler(context=_context(ca_file)))
        self._opener = build_opener(*handlers)

    @classmethod
    def of(cls, arguments: Namespace) -> "ApiClient":
        """Return a client for the address and token that the options select. Raises ConfigError."""
        url = arguments.url or os.environ.get(URL) or DEFAULT_URL
        if arguments.token_file:
            try:
                token = Path(arguments.token_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"option --token-file: {error}") from error
        else:
            token = os.environ.get(TOKEN, "").strip()
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError("no token", hint=f"use --token-file FILE or the variable {TOKEN}")
        return cls(url, token, arguments.ca_file, arguments.timeout)

    @property
    def token(self) -> str:
        """The token to send with requests."""
        return self._token

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request and return the JSON value of its response. Fields that are None are left out."""
        with self._open(method, path, query, body) as response:
            try:
                return json.loads(response.read(MAX_ANSWER))
            except (OSError, HTTPException, ValueError) as error:
                raise RequestRefused(f"the response cannot be read: {error}") from error

    def pages(self, path: str, query: Mapping[str, Any], most: int | None = None) -> Iterator[Any]:
        """Yield the items of all pages in turn, `most` items at most."""
        cursor, left = "", most
        while left is None or left > 0:
            limit = PAGE if left is None else min(PAGE, left)
            page = self.ask("GET", path, {**query, "cursor": cursor, "limit": limit})
            yield from page["items"]
            left = None if left is None else left - len(page["items"])
            cursor = page["cursor"]
            if not cursor:
                return

    def events(
        self, path: str, query: Mapping[str, Any], opened: Callable[[], None] | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield the server-sent events of a response. Calls `opened` when the response starts."""
        with self._open("GET", path, query, None) as response:
            if opened is not None:
                opened()
            name = data = ""
            try:
                for line in response:
                    text = line.decode().rstrip("\n")
                    if text.startswith("event: "):
                        name = text.removeprefix("event: ")
                    elif text.startswith("data: "):
                        data = text.removeprefix("data: ")
                    elif not text and name:
                        yield name, json.loads(data)
                        name = ""
            except (OSError, HTTPException, ValueError) as error:
                raise RequestRefused(f"the connection ended: {error}") from error

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
    ) -> HTTPResponse:
        found = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        url = self._base + path + (f"?{urlencode(found)}" if found else "")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps({name: v for name, v in body.items() if v is not None}).encode()
            headers["Content-Type"] = "application/json"
        request = Request(url, data, headers, method=method)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=self._timeout)
        except HTTPError as error:
            with error:
                raise RequestRefused(_reason(error), error.code) from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            reason = getattr(reason, "strerror", None) or reason
            raise BrokerUnreachable(f"{self._base} cannot be reached: {reason}") from error
        return response


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"option --ca-file: {ca_file}: {error}") from error


def part(text: str) -> str:
    """Return `text` percent-encoded for use as one path segment."""
    return quote(text, safe="")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(error: HTTPError) -> str:
    try:
        problem = json.loads(error.read(1 << 16))
        field = f"{problem['field']}: " if problem.get("field") else ""
        return f"{field}{problem['detail']} ({error.code})"
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        hint = "; --url must be like http://HOST:PORT/plugins/admin" if error.code == 404 else ""
        return f"{error.reason} ({error.code}){hint}"
