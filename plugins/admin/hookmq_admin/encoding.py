"""Encode responses in parts. Encoding a page with long client ids or a long history at once would block the
event loop.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from aiohttp import web

PART: Final = 1 << 16
"""Number of bytes to encode before yielding to the event loop. Encoding them takes less than a millisecond."""
SLICE: Final = 512
"""Number of list values to encode in one call, if they are all numbers or null."""


async def send(
    request: web.BaseRequest, value: Any, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Return a response with a JSON value. A large value is sent in parts, and each part waits until the client has
    read the one before.
    """
    response: web.StreamResponse | None = None
    waiting: list[bytes] = []
    async for part in encoded(value):
        if waiting:
            if response is None:
                kind = {"Content-Type": "application/json; charset=utf-8"}
                response = web.StreamResponse(headers={**headers, **kind})
                await response.prepare(request)
            await response.write(waiting.pop())
        waiting.append(part)
    if response is None:
        body = b"".join(waiting)
        return web.Response(
            body=body, headers=headers, content_type="application/json", charset="utf-8"
        )
    await response.write(waiting.pop())
    return response


async def encoded(value: Any) -> AsyncIterator[bytes]:
    """Yield a JSON text in parts. The event loop gets a turn after each part except the last."""
    texts: list[str] = []
    size = 0
    for text in _texts(value):
        if size >= PART:
            yield "".join(texts).encode()
            texts, size = [], 0
            await asyncio.sleep(0)
        texts.append(text)
        size += len(text)
    yield "".join(texts).encode()


def _texts(value: Any, depth: int = 3) -> Iterator[str]:
    """Yield the pieces of a JSON text. Objects and lists are split down to `depth` levels."""
    if depth and isinstance(value, dict) and value:
        start = "{"
        for name, one in value.items():
            yield f"{start}{json.dumps(name)}: "
            yield from _texts(one, depth - 1)
            start = ", "
        yield "}"
    elif depth and isinstance(value, list) and len(value) > 1:
        step = SLICE if isinstance(value[0], int | float | None) else 1
        start = "["
        for first in range(0, len(value), step):
            yield start + json.dumps(value[first : first + step])[1:-1]
            start = ", "
        yield "]"
    else:
        yield json.dumps(value)
