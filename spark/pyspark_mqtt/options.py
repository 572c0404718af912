"""The options of ``format("mqtt")``: names, types, defaults and checks.

Options that Kafka or Bahir also has keep the same names. Names are case-insensitive, as everywhere in Spark. An unknown
name is an error, so that a misspelled limit is not ignored.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from urllib.parse import SplitResult, urlsplit

from pyspark_mqtt.errors import OptionError

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _boolean(value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.strip().lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise ValueError(f"must be a whole number {bounds}")
        return number

    return parse


def _duration(value: str) -> int:
    found = re.fullmatch(r"(\d+) *(ms|s|m|min|h)", value.strip())
    if not found:
        raise ValueError("must be a time such as 500ms, 30s or 15m")
    return int(found[1]) * _UNITS[found[2]]


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for choice in choices:
            if choice.lower() == value.strip().lower():
                return choice
        raise ValueError(f"must be one of {', '.join(choices)}")

    return parse


def _name(value: str) -> str:
    if not _STREAM.fullmatch(value):
        raise ValueError("must be 1 to 128 of A-Z a-z 0-9 _ . - and begin with a letter or digit")
    return value


def _strings(value: str) -> list[str]:
    """Parse a list of strings, given as JSON or separated by commas."""
    if not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(",")]
    given = json.loads(value)
    if not all(isinstance(part, str) for part in given):
        raise ValueError("must be a JSON list of strings")
    return list(given)


def topic_filter_fault(text: str) -> str | None:
    """Describe what is wrong with an MQTT topic filter, or return None."""
    if not text:
        return "is empty"
    if "\0" in text:
        return "contains a null character"
    levels = text.split("/")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        return "has a # that is not the whole last level"
    if any("+" in level and level != "+" for level in levels):
        return "has a + that is not a whole level"
    return None


def topic_fault(text: str) -> str | None:
    """Describe what is wrong with a topic to publish to, or return None."""
    if "#" in text or "+" in text:
        return "has a wildcard"
    return topic_filter_fault(text)


def _filters(value: str) -> tuple[str, ...]:
    filters = _strings(value)
    for one in filters:
        if fault := topic_filter_fault(one):
            raise ValueError(f"{one!r} {fault}")
    return tuple(filters)


def _topic(value: str) -> str:
    if fault := topic_fault(value):
        raise ValueError(fault)
    return value


def _offsets(*words: str) -> Callable[[str], str | dict[str, int]]:
    """Return a parser that accepts one of ``words``, or JSON such as {"0": 12, "1": -2}, with or without a log_id."""

    def parse(value: str) -> str | dict[str, int]:
        text = value.strip()
        if text.lower() in words:
            return text.lower()
        hint = f'must be {" or ".join(words)}, or JSON such as {{"0": 123, "1": -2}}'
        try:
            given = json.loads(text)
        except ValueError:
            raise ValueError(hint) from None
        if not isinstance(given, dict) or not given:
            raise ValueError(hint)
        for key, offset in given.items():
            if key == "log_id" and isinstance(offset, str):
                continue
            if not key.isdecimal() or type(offset) is not int or offset < -2:
                raise ValueError(hint)
        return given

    return parse


def _partition_times(value: str) -> dict[int, int]:
    """Parse JSON such as {"0": 1700000000000}, which contains milliseconds since 1970 for each partition."""
    hint = 'must be JSON of milliseconds by partition, such as {"0": 1700000000000, "1": 1700000000000}'
    try:
        given = json.loads(value)
    except ValueError:
        raise ValueError(hint) from None
    if not isinstance(given, dict) or not given:
        raise ValueError(hint)
    for key, time in given.items():
        if not (key.isascii() and key.isdecimal()) or type(time) is not int or time < 0:
            raise ValueError(hint)
    return {int(key): time for key, time in given.items()}


def _assigned(value: str) -> tuple[str, tuple[int, ...]]:
    """Parse JSON such as {"telemetry": [0, 1]}: the name of a stream, and which of its partitions to read."""
    hint = 'must be JSON with one stream and its partitions, such as {"telemetry": [0, 1]}'
    try:
        given = json.loads(value)
    except ValueError:
        raise ValueError(hint) from None
    if not isinstance(given, dict) or len(given) != 1:
        raise ValueError(hint)
    [(name, partitions)] = given.items()
    if not _STREAM.fullmatch(name) or not isinstance(partitions, list) or not partitions:
        raise ValueError(hint)
    if any(type(one) is not int or one < 0 for one in partitions):
        raise ValueError(hint)
    if len(set(partitions)) < len(partitions):
        raise ValueError("names a partition twice")
    return name, tuple(sorted(partitions))


def _pattern(value: str) -> str:
    """Check a regular expression with the library that applies it. That library takes linear time for any expression."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.nulls(1, pa.string()), whole(value))
    except pa.ArrowInvalid as error:
        raise ValueError(f"is not a regular expression of RE2 ({error})") from None
    return _text(value)


def whole(pattern: str) -> str:
    """Return an expression that matches if ``pattern`` matches the whole text."""
    return rf"\A(?s:{pattern})\z"


def _url(default_ports: Mapping[str, int | None], what: str) -> Callable[[str], SplitResult]:
    def parse(value: str) -> SplitResult:
        example = f"{next(iter(default_ports))}://broker.example:{what}"
        try:
            url = urlsplit(value.strip())
            port = url.port
        except ValueError:
            raise ValueError(f"is not a URL; give one such as {example}") from None
        if url.scheme not in default_ports or not url.hostname:
            raise ValueError(
                f"must begin with {', '.join(f'{s}://' for s in default_ports)} and name a host, "
                f"such as {example}"
            )
        if url.username or url.password:
            raise ValueError("must not hold a password: there are options for that")
        if port is None and default_ports[url.scheme] is None:
            raise ValueError(f"names no port; give one, such as {example}")
        return url

    return parse


BROKER_PORTS: Mapping[str, int | None] = {
    "mqtt": 1883, "mqtts": 8883, "tcp": 1883, "ssl": 8883, "ws": 80, "wss": 443,
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """An option: how to parse its text, its default or None, and whether it is required."""

    name: str
    parse: Callable[[str], object]
    default: object = None
    needed: str = ""
    """The text to show if a required option is missing; '' if the option is optional."""


def _table(*options: Option) -> dict[str, Option]:
    return {option.name.lower(): option for option in options}


_TLS = (
    Option("caFile", _text),
    Option("certFile", _text),
    Option("keyFile", _text),
)

READ = _table(
    Option("url", _url({"http": None, "https": None}, "1890"), needed=(
        "the address of the broker's read API, such as https://broker.example:1890")),
    Option("stream", _name, needed="the name of a stream in the broker's configuration"),
    Option("assign", _assigned),
    Option("topics", _filters, ()),
    Option("subscribePattern", _pattern),
    Option("token", _text),
    Option("tokenFile", _text),
    *_TLS,
    Option("startingOffsets", _offsets("earliest", "latest")),
    Option("endingOffsets", _offsets("latest"), "latest"),
    Option("startingTimestamp", _number(0)),
    Option("endingTimestamp", _number(0)),
    Option("startingOffsetsByTimestamp", _partition_times),
    Option("endingOffsetsByTimestamp", _partition_times),
    Option("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error"),
    Option("maxOffsetsPerTrigger", _number(1)),
    Option("minOffsetsPerTrigger", _number(1)),
    Option("maxTriggerDelay", _duration, 900_000),
    Option("minPartitions", _number(1)),
    Option("maxRecordsPerPartition", _number(1)),
    Option("minRecordsPerPartition", _number(1), 1),
    Option("failOnDataLoss", _boolean, True),
    Option("includeHeaders", _boolean, False),
    Option("includeProperties", _boolean, False),
    Option("consumerGroup", _name),
    Option("fetchOffset.numRetries", _number(0), 60),
    Option("fetchOffset.retryIntervalMs", _number(0), 1000),
    Option("fetch.timeoutMs", _number(1), 30_000),
    Option("fetch.maxBytes", _number(1), 33_554_432),
    Option("batchRows", _number(1), 10_000),
)  # fmt: skip

WRITE = _table(
    Option("brokerUrl", _url(BROKER_PORTS, "1883"), needed=(
        "the address of the broker, such as mqtt://broker.example:1883")),
    Option("topic", _topic),
    Option("qos", _number(0, 1), 1),
    Option("retain", _boolean, False),
    Option("username", _text),
    Option("password", _text),
    Option("passwordFile", _text),
    *_TLS,
    Option("clientIdPrefix", _text, "spark"),
    Option("messageIdPrefix", _text, "spark"),
    Option("maxInflight", _number(1, 65_535), 100),
    Option("mqttVersion", _one_of("5", "3.1.1"), "5"),
    Option("keepAlive", _number(0, 65_535), 60),
    Option("connectionTimeoutMs", _number(1), 30_000),
    Option("publishTimeoutMs", _number(1), 60_000),
)  # fmt: skip

_HINTS = {
    "kafka.bootstrap.servers": "`url` is the address of the broker's read API",
    "subscribe": "`stream` names the stream, `topics` the topic filters",
    "groupidprefix": "`consumerGroup` is the name under which progress is reported",
    "cleansession": "every task writes with a session of its own",
    "clientid": "`clientIdPrefix` begins the client ids; each task has one of its own",
    "brokerurl": "reading goes by the broker's read API: `url`",
    "startingoffset": "it is `startingOffsets`",
}
_SPARKS = {"checkpointlocation", "queryname", "path"}
"""Option names that Spark adds for a source or sink."""


@dataclass(frozen=True)
class Options:
    """The parsed and checked options."""

    values: Mapping[str, object]
    given: frozenset[str] = field(default_factory=frozenset)

    def text(self, name: str) -> str:
        """Return a text option's value, or '' if it is not set."""
        value = self.values[name.lower()]
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Return a number option's value, which must be set or have a default."""
        value = self.values[name.lower()]
        assert isinstance(value, int)
        return value

    def limit(self, name: str) -> int | None:
        """Return a number option's value, or None if it is not set."""
        value = self.values[name.lower()]
        return value if isinstance(value, int) else None

    def flag(self, name: str) -> bool:
        """Return a true-or-false option's value."""
        return self.values[name.lower()] is True

    def url(self, name: str) -> SplitResult:
        """Return a URL option's value."""
        value = self.values[name.lower()]
        assert isinstance(value, SplitResult)
        return value

    def filters(self, name: str) -> tuple[str, ...]:
        """Return an option's topic filters."""
        value = self.values[name.lower()]
        assert isinstance(value, tuple)
        return value

    def times(self, name: str) -> dict[int, int] | None:
        """Return an option's milliseconds for each partition, or None if it is not set."""
        value = self.values[name.lower()]
        return value if isinstance(value, dict) else None

    @property
    def assigned(self) -> tuple[int, ...] | None:
        """Return the partitions that ``assign`` names, or None if it is not set."""
        value = self.values["assign"]
        return value[1] if isinstance(value, tuple) else None

    def offsets(self, name: str) -> str | dict[str, int] | None:
        """Return an option's offsets: a word, an offset for each partition, or None."""
        value = self.values[name.lower()]
        return value if isinstance(value, (str, dict)) else None


def parse(given: Mapping[str, str], table: Mapping[str, Option], path: str) -> Options:
    """Parse the given options by ``table``. ``path`` names the option that is set by the argument of ``load(...)`` or
    ``save(...)``.

    Raises OptionError for a missing option, an invalid value, or an unknown name. For an unknown name, the message
    suggests a similar option or lists all of them.
    """
    texts = {name.lower(): value for name, value in given.items()}
    if texts.get("path") and path.lower() not in texts:
        texts[path.lower()] = texts["path"]
    for name in sorted(texts.keys() - table.keys() - _SPARKS):
        raise OptionError(f"Unknown option {name}: {_meant(name, table)}.")
    values: dict[str, object] = {}
    for name, option in table.items():
        text = texts.get(name)
        if text is None:
            if option.needed:
                raise OptionError(
                    f'Option {option.name} is missing: .option("{option.name}", ...) is {option.needed}.'
                )
            values[name] = option.default
            continue
        try:
            values[name] = option.parse(text)
        except ValueError as error:
            shown = "" if name in ("token", "password") else f" is {text!r}, but"
            raise OptionError(f"Option {option.name}{shown} {error}.") from None
    return Options(values, frozenset(texts))


def _meant(name: str, table: Mapping[str, Option]) -> str:
    if hint := _HINTS.get(name):
        return hint
    if close := get_close_matches(name, table, n=1, cutoff=0.6):
        return f"did you mean {table[close[0]].name}?".rstrip("?") + "?"
    return f"known are {', '.join(option.name for option in table.values())}"


def reading(given: Mapping[str, str]) -> Options:
    """Parse a reader's options. ``assign`` also names the stream."""
    texts = {name.lower(): value for name, value in given.items()}
    if "assign" in texts and "stream" not in texts:
        try:
            texts["stream"] = _assigned(texts["assign"])[0]
        except ValueError:
            texts["stream"] = "assign"  # parse names the mistake in assign.
    options = parse(texts, READ, "url")
    assigned = options.values["assign"]
    if isinstance(assigned, tuple) and assigned[0] != options.text("stream"):
        raise OptionError(
            f"Option assign names stream {assigned[0]}, and stream names {options.text('stream')}: leave stream out."
        )
    for kind in ("starting", "ending"):
        names = [f"{kind}Offsets", f"{kind}Timestamp", f"{kind}OffsetsByTimestamp"]
        chosen = [name for name in names if name.lower() in options.given]
        if len(chosen) > 1:
            raise OptionError(f"Give {' or '.join(chosen)}, not both.")
    least, most = options.limit("minOffsetsPerTrigger"), options.limit("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"Option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}."
        )
    _one_secret(options, "token")
    return options


def writing(given: Mapping[str, str]) -> Options:
    """Parse a writer's options."""
    options = parse(given, WRITE, "brokerUrl")
    _one_secret(options, "password")
    if (
        options.text("password")
        and not options.text("username")
        and options.text("mqttVersion") != "5"
    ):
        raise OptionError(
            "Option password needs username: MQTT 3.1.1 knows no password without one."
        )
    return options


def _one_secret(options: Options, name: str) -> None:
    if options.text(name) and options.text(f"{name}File"):
        raise OptionError(f"Give {name} or {name}File, not both.")
    if bool(options.text("certFile")) != bool(options.text("keyFile")):
        raise OptionError("Options certFile and keyFile go together: a certificate and its key.")


def secret(options: Options, name: str) -> str:
    """Return ``token`` or ``password``, or the current contents of its file. Return '' if neither is set."""
    path = options.text(f"{name}File")
    if not path:
        return options.text(name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"Option {name}File is {path!r}, which cannot be read ({error}); it must be on every node."
        ) from None
