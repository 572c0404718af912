"""Convert MQTT topic filters to Spark conditions."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as f


def pattern(topic_filter: str) -> str:
    """Return a Java regular expression for the topics that a filter matches. Raises ValueError for an invalid
    filter."""
    levels = topic_filter.split("/")
    if (
        not topic_filter
        or "#" in levels[:-1]
        or any(one not in ("+", "#") and re.search("[+#\0]", one) for one in levels)
    ):
        raise ValueError(f"{topic_filter!r} is not a topic filter")
    # [MQTT-4.7.2-1]: a filter that begins with a wildcard does not match topics that begin with $.
    start = r"^(?!\$)" if levels[0] in ("+", "#") else "^"
    if levels == ["#"]:
        return start
    # `a/#` also matches `a`.
    end = r"(/.*)?\z" if levels[-1] == "#" else r"\z"
    named = levels[:-1] if levels[-1] == "#" else levels
    return start + "/".join("[^/]*" if one == "+" else _escaped(one) for one in named) + end


def _escaped(text: str) -> str:
    """Escape characters that are special in Python or Java."""
    return re.sub(r"([\\.\[\]{}()*+?^$|])", r"\\\1", text)


def matches(topic: Column, filters: tuple[str, ...]) -> Column:
    """Return a condition that is true if the topic matches one of the filters."""
    found = f.lit(False)
    for one in filters:
        # (?s): a topic may contain line breaks.
        found = found | topic.rlike("(?s)" + pattern(one))
    return found
