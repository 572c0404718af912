"""Topic filters of MQTT as conditions."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as f


def pattern(topic_filter: str) -> str:
    """A regular expression of Java's that finds the topics that a filter matches. Raises ValueError."""
    levels = topic_filter.split("/")
    if (
        not topic_filter
        or "#" in levels[:-1]
        or any(one not in ("+", "#") and re.search("[+#\0]", one) for one in levels)
    ):
        raise ValueError(f"{topic_filter!r} is no topic filter")
    # [MQTT-4.7.2-1]: a wildcard at the beginning does not match topics that begin with $.
    start = r"^(?!\$)" if levels[0] in ("+", "#") else "^"
    if levels == ["#"]:
        return start
    # `a/#` matches `a`, too.
    end = r"(/.*)?\z" if levels[-1] == "#" else r"\z"
    named = levels[:-1] if levels[-1] == "#" else levels
    return start + "/".join("[^/]*" if one == "+" else _escaped(one) for one in named) + end


def _escaped(text: str) -> str:
    """As Java takes it, too: only what means something there is escaped."""
    return re.sub(r"([\\.\[\]{}()*+?^$|])", r"\\\1", text)


def matches(topic: Column, filters: tuple[str, ...]) -> Column:
    """Whether a topic matches any of the filters."""
    found = f.lit(False)
    for one in filters:
        # (?s): a topic may hold line breaks.
        found = found | topic.rlike("(?s)" + pattern(one))
    return found
