"""Fetching a JWK Set: bounded in time, size and redirects, and never down from https."""

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import aiohttp
from hookmq.files import check_regular

from hookmq_auth_jwt.config import FetchConfig, is_safe


class FetchFailed(Exception):
    """It could not be fetched; the message says why, without what came."""


_REDIRECTS = (301, 302, 303, 307, 308)


async def fetch(url: str, config: FetchConfig) -> bytes:
    """What `url` serves. Raises FetchFailed for everything but a 200 of at most `config.max_size` bytes within
    `config.timeout`. Needs a running asyncio loop."""
    try:
        async with asyncio.timeout(config.timeout):
            return await _follow(url, config)
    except FetchFailed:
        raise
    except TimeoutError:
        raise FetchFailed(f"no answer within {config.timeout:g} s") from None
    except aiohttp.ClientConnectorCertificateError:
        raise FetchFailed("the server's certificate is not trusted") from None
    except aiohttp.ClientConnectorError as error:
        raise FetchFailed(f"cannot connect: {error.os_error.strerror or error.os_error}") from None
    except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
        raise FetchFailed(f"fetching failed: {type(error).__name__}") from None


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """The TLS context; blocks for the authorities' file. Raises OSError (ssl.SSLError is one)."""
    if ca_file is not None:
        check_regular(ca_file)  # OpenSSL waits at a pipe
    return ssl.create_default_context(cafile=ca_file)


async def _follow(url: str, config: FetchConfig) -> bytes:
    secure: ssl.SSLContext | bool = True
    if config.ca_file is not None:
        secure = await asyncio.get_running_loop().run_in_executor(
            None, client_context, config.ca_file
        )
    connector = aiohttp.TCPConnector(limit=1, force_close=True, ssl=secure)
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # Compressed, a few bytes could become many.
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    ) as session:
        for _ in range(config.max_redirects + 1):
            async with session.get(url, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    url = _next(url, response.headers.get("Location", ""), config)
                    continue
                if response.status != 200:
                    raise FetchFailed(f"HTTP {response.status}")
                return await _body(response, config.max_size)
    raise FetchFailed(f"more than {config.max_redirects} redirects")


def _next(url: str, location: str, config: FetchConfig) -> str:
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
    except ValueError:
        raise FetchFailed("redirected to what is no URL") from None
    if not location or parts.scheme not in ("http", "https") or not parts.hostname:
        raise FetchFailed("redirected to what is no URL")
    down = url.startswith("https:") and parts.scheme != "https"
    if down or not (config.insecure_http or is_safe(target)):
        raise FetchFailed("redirected away from https")
    return target


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise FetchFailed("it is compressed, which was not asked for")
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > most:
            raise FetchFailed(f"more than {most} bytes")
    return bytes(data)
