"""Entity tags and ``If-Match``, which keep administrators from overwriting each other's changes."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from hookmq_admin.errors import ApiError

_TAG: Final = re.compile(r'\s*(W/)?("[\x21\x23-\x7e]*")\s*(?:,|$)')


def tag_of(parts: Iterable[str]) -> str:
    """Return the entity tag for the state made up of `parts`."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)}:".encode() + data)
    return f'"{digest.hexdigest()[:24]}"'


def check(given: Iterable[str], tag: str) -> None:
    """Check a request's ``If-Match`` headers. Raises ApiError 412 if none of them names `tag`, and 400 if one is
    malformed. A request without the header always passes.
    """
    headers = list(given)
    if not headers:
        return
    text = ",".join(headers).strip()
    if text == "*":
        return
    place = 0
    found = False
    while place < len(text):
        part = _TAG.match(text, place)
        if part is None:
            raise ApiError(400, 'expected entity tags such as "0123" in If-Match, or *')
        found = found or (part[1] is None and part[2] == tag)
        place = part.end()
    if not found:
        raise ApiError(
            412, "the state has changed since this entity tag: get it again, then repeat the change"
        )
