"""Shorten errors from the table formats' libraries to one line."""

import re
from typing import Final

COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
S3: Final = re.compile(r"<Code>(?P<code>[^<]*)</Code>\s*(?:<Message>(?P<message>[^<]*)</Message>)?")
"""Matches the reason in an XML response of S3, which delta-rs appends to its error."""


def brief(error: BaseException) -> str:
    """Return the first line of an error, followed by the reason from S3 if the error contains one."""
    text = COLORS.sub("", str(error)).strip()
    parts = [text.partition("\n")[0].strip() or type(error).__name__]
    if found := S3.search(text):
        parts += [part.strip() for part in found.groups() if part]
    return ": ".join(parts)
