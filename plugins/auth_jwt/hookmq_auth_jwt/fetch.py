"""Fetch a JWK Set, with limits on time, size and redirects. A redirect from https to http is never followed."""

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import aiohttp
from hookmq_toolkit.http_client import AnswerTooLarge, open_session, read_body
from hookmq_toolkit.service_url import clear_text_host
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_auth_jwt.config import FetchConfig


class FetchFailed(Exception):
    """A JWK Set could not be fetched. The message gives the reason, but never quotes the response."""


_REDIRECTS = (301, 302, 303, 307, 308)


async def fetch(url: str, config: FetchConfig) -> bytes:
    """Fetch `url` and return the response body. Needs a running event loop.

    The response must have status 200, contain at most `config.max_size` bytes and arrive within `config.timeout`
    seconds. Otherwise, raises FetchFailed.
    """
    try:
        async with asyncio.timeout(config.timeout):
            return await _follow(url, config)
    except FetchFailed:
        raise
    except TimeoutError:
        raise FetchFailed(f"no answer within {config.timeout:g} s") from None
    except AnswerTooLarge:
        raise FetchFailed(f"more than {config.max_size} bytes") from None
    except aiohttp.ClientConnectorCertificateError:
        raise FetchFailed("the server's certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise FetchFailed(f"cannot connect: {error.os_error.strerror or error.os_error}") from None
    except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
        raise FetchFailed(f"fetching failed: {type(error).__name__}") from None


async def _follow(url: str, config: FetchConfig) -> bytes:
    tls = None
    if config.ca_file is not None:
        loop = asyncio.get_running_loop()
        tls = await loop.run_in_executor(None, _trust, config.ca_file)
    async with open_session(
        "hookmq-auth-jwt", 1, tls=tls, accept="application/json", keep_connections=False
    ) as session:
        for _ in range(config.max_redirects + 1):
            async with session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    url = _next(url, response.headers.get("Location", ""), config)
                    continue
                if response.status != 200:
                    raise FetchFailed(f"HTTP {response.status}")
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise FetchFailed("the answer is compressed")
                return await read_body(response, config.max_size)
    raise FetchFailed(f"more than {config.max_redirects} redirects")


def _trust(ca_file: Path) -> ssl.SSLContext:
    return client_context(TlsConfig(ca_file=ca_file))


def _next(url: str, location: str, config: FetchConfig) -> str:
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
    except ValueError:
        raise FetchFailed("redirected to an invalid URL") from None
    if not location or parts.scheme not in ("http", "https") or not parts.hostname:
        raise FetchFailed("redirected to an invalid URL")
    down = url.startswith("https:") and parts.scheme != "https"
    if down or (clear_text_host(target) and not config.insecure_http):
        raise FetchFailed("redirected away from https")
    return target
