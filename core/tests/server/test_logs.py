"""Test logging. Event names and fields are stable, and no secret is logged."""

import asyncio
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hookmq.broker import Broker
from hookmq.config.binding import _SECRET_KEYS
from hookmq.model.settings import Settings
from hookmq.server import logs
from hookmq.server.asyncio_runtime import AsyncioRuntime


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root, own = logging.getLogger(), logging.getLogger("hookmq")
    before = (root.level, own.level)
    stream = io.StringIO()
    yield stream
    root.setLevel(before[0])
    own.setLevel(before[1])
    for handler in root.handlers[:]:
        if handler.get_name() == "hookmq":
            root.removeHandler(handler)


def tell(event: str, severity: int = logging.INFO, /, **fields: object) -> None:
    logging.getLogger("hookmq").log(severity, event, extra={"event": event, "fields": fields})


def test_text_is_one_line_of_pairs(stream: io.StringIO) -> None:
    logs.configure("info", "text", stream)
    tell("client.connected", client_id="a b", listener="tcp", clean=True, age=1.5, none=None)
    words = stream.getvalue().split(" ", 1)[1]
    assert words == 'info    client.connected client_id="a b" listener=tcp clean=true age=1.5\n'


def test_values_from_clients_cannot_forge_log_lines(stream: io.StringIO) -> None:
    logs.configure("info", "text", stream)
    tell("client.connected", client_id="x\n00:00 error  forged", user="\x1b[2J", empty="")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert 'client_id="x\\n00:00 error  forged" user="\\u001b[2J" empty=""' in text


def test_json_is_one_object_per_line(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    tell("client.connected", client_id="ä\n", level="mine", listeners=["a"], odd=object)
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["level"], entry["level_"]) == ("client.connected", "info", "mine")
    assert (entry["client_id"], entry["listeners"]) == ("ä\n", ["a"])
    assert entry["time"].endswith("Z")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variable", "value", "color"),
    [
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "0", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
        ("TERM", "xterm", True),
    ],
)
def test_no_color(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, color: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    terminal = Terminal()
    logs.configure("info", "auto", terminal)
    tell("store.failed", logging.ERROR)
    assert ("\x1b" in terminal.getvalue()) is color
    assert "store.failed" in terminal.getvalue()


def test_auto_is_json_where_nobody_looks(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert logs.chosen_format("auto", stream) == "json"
    assert logs.chosen_format("auto", Terminal()) == "text"
    terminal = Terminal()
    logs.configure("info", "auto", terminal)
    tell("store.failed", logging.ERROR)
    assert terminal.getvalue().startswith("\x1b[31m")


@pytest.mark.parametrize("format", ["text", "json"])
def test_secrets_and_payloads_are_never_written(stream: io.StringIO, format: logs.Format) -> None:
    logs.configure("debug", format, stream)
    fields: dict[str, Any] = {
        "password": "hunter2", "payload": b"hunter2", "api_token": "hunter2", "Secret": "hunter2",
        "deep": {"key_password": "hunter2", "list": [{"token": "hunter2"}], "seen": "yes"}, "data": b"hunter2",
        "headers": {"Authorization": "hunter2", "Set-Cookie": "hunter2", "X-API-Key": "hunter2"}, "apikey": "hunter2",
        "tls": {"private_key": "hunter2", "key": "visible"},
    }  # fmt: skip
    tell("plugin.event", **fields)
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "yes" in text
    assert "visible" in text
    assert "7 bytes" in text


def test_the_secrets_of_the_configuration_are_not_logged() -> None:
    assert all(logs.is_dropped(name) for name in _SECRET_KEYS)
    assert not logs.is_dropped("tokens")
    assert not logs.is_dropped("key")


def test_the_level_holds_and_a_second_call_replaces_the_first(stream: io.StringIO) -> None:
    logs.configure("info", "text", io.StringIO())
    logs.configure("warning", "text", stream)
    tell("client.connected")
    tell("auth.anonymous", logging.WARNING)
    assert stream.getvalue().count("\n") == 1
    names = [handler.get_name() for handler in logging.getLogger().handlers]
    assert names.count("hookmq") == 1


def test_libraries_are_told_by_name_and_tracebacks_follow(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    logging.getLogger("aiohttp.server").info("quiet")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("it %s", "failed")
    entry = json.loads(stream.getvalue())
    assert (entry["event"], entry["logger"], entry["message"]) == (
        "log",
        "aiohttp.server",
        "it failed",
    )
    assert entry["traceback"].endswith("ValueError: why")
    stream.truncate(0)
    logs.configure("info", "text", stream)
    logging.getLogger("x").warning("plain")
    assert "warning log logger=x message=plain" in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_field_has_an_end(stream: io.StringIO, form: Any) -> None:
    logs.configure("info", form, stream)
    tell(
        "client.connected", client_id="x" * 65535, nested={"topics": ["y" * 5000]}, short="z" * 1000
    )
    text = stream.getvalue()
    assert len(text) < 4000
    assert "(65535 characters)" in text or "(65535 \\u2026" in text
    assert "z" * 1000 in text


def test_nobody_reads(stream: io.StringIO) -> None:
    """A full pipe does not block the broker. Lost entries are counted, and the remaining ones stay in order."""
    reading, writing = os.pipe()
    handler = logs.AsideHandler(os.fdopen(writing, "w"))
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("hookmq.test_nobody_reads")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    sent = 3 * logs.WAITING // 1000
    for number in range(sent):
        logger.info(
            "x" * 1000, extra={"event": "filled", "fields": {"number": number, "text": "x" * 900}}
        )
    with os.fdopen(reading) as pipe:
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["event"] != "log.lost":
            seen.append(json.loads(pipe.readline()))
        logger.info("", extra={"event": "after", "fields": {}})
        assert json.loads(pipe.readline())["event"] == "after"
        logger.removeHandler(handler)
        handler.close()
    *lines, lost = seen
    assert [line["number"] for line in lines] == list(range(len(lines)))
    assert lost["lines"] == sent - len(lines) > 0
    assert lost["level"] == "warning"
    handler.stream.close()


def test_all_is_written_at_the_end() -> None:
    stream = io.StringIO()
    handler = logs.AsideHandler(stream)
    handler.setFormatter(logs.TextFormatter(False))
    for number in range(1000):
        handler.emit(logging.LogRecord("hookmq", logging.INFO, "", 0, f"n{number}", (), None))
    handler.close()
    assert [f"n{n}" in line for n, line in enumerate(stream.getvalue().splitlines())] == [
        True
    ] * 1000


def test_a_stream_that_breaks_breaks_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = logs.AsideHandler(os.fdopen(writing, "w"))
    for _ in range(3):
        handler.emit(logging.LogRecord("hookmq", logging.INFO, "", 0, "x", (), None))
        handler.flush()
    handler.close()
    with suppress(BrokenPipeError):
        handler.stream.close()


def _caught(message: str) -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_traceback_cannot_forge_a_line(stream: io.StringIO) -> None:
    """A traceback cannot forge a log line, even though an exception's message may contain text from a client."""
    logs.configure("info", "text", stream)
    logs.tell(
        "error", "plugin.failed", traceback=_caught("\n12:00:00 info forged\x1b[2J" + "x" * 2000)
    )
    first, *rest = stream.getvalue().splitlines()
    assert "plugin.failed" in first
    assert "traceback" not in first
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in "".join(rest)
    assert max(map(len, rest)) < 1100


def test_a_deep_traceback_is_cut(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    logs.tell("error", "plugin.failed", traceback=_caught("\n" * 5000 + "end"))
    lines = json.loads(stream.getvalue())["traceback"].split("\n")
    assert len(lines) == logs.DEEPEST
    assert lines[-1] == "end"


def test_a_fault_of_the_broker_shows_its_traceback(stream: io.StringIO) -> None:
    """The log contains the traceback itself, not the `repr` of a traceback object."""
    logs.configure("info", "json", stream)

    def fault() -> None:
        raise ValueError("why")

    async def main() -> None:
        runtime = AsyncioRuntime()
        broker = Broker(Settings(), runtime)
        broker.state.guarded(fault)
        await runtime.close()

    asyncio.run(main())
    (entry,) = [json.loads(line) for line in stream.getvalue().splitlines() if "internal" in line]
    assert "in fault" in entry["traceback"]
    assert entry["traceback"].endswith("ValueError: why")


class Silent:
    """An object that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __hash__ = object.__hash__


class Odd(dict[str, object]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise KeyError("no items")


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_value_makes_a_call_that_logs_fail(
    stream: io.StringIO, form: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = {"a": [deep]}
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    logs.configure("info", form, stream)
    tell(
        "odd.values", deep=deep, silent=Silent(), keys={Silent(): 1, 5: 2, b"x": 3},
        huge=10**6000, nan=float("nan"), odd=Odd(a=1), raw=b"abc", some=frozenset((1,)),
    )  # fmt: skip
    tell("odd.fields", cycle=cycle)
    text = stream.getvalue()
    assert [text.count(one) for one in ("odd.values", "odd.fields", "\n")] == [1, 1, 2]
    assert "<Silent>" in text
    assert "<Odd>" in text
    assert capsys.readouterr().err == ""
    if form == "json":
        fields = json.loads(text.splitlines()[0], parse_constant=pytest.fail)
        assert fields["keys"] == {"<Silent>": 1, "5": 2, "b'x'": 3}
        assert (fields["huge"], fields["nan"], fields["raw"]) == (
            "<19932 bits>",
            "nan",
            "<3 bytes>",
        )
        assert fields["some"] == [1]
    assert len(text) < 3 * logs.LARGEST


def test_an_event_has_an_end(stream: io.StringIO) -> None:
    logs.configure("info", "json", stream)
    tell("a.b", client_id="first", many=list(range(100_000)), more={str(n): n for n in range(9999)})
    tell("a.b", keys={"k" * 5000: 1}, long={str(n): "x" * 1000 for n in range(1000)})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["client_id"] == "first"
    assert (first["many"][:2], first["many"][-1], first["\u2026"]) == ([0, 1], "\u2026", "\u2026")
    assert len(stream.getvalue()) < 4 * logs.LARGEST
    assert next(iter(second["keys"])).endswith("(5000 characters)")
    logging.getLogger("library").warning("%s", "y" * 5000)
    assert json.loads(stream.getvalue().splitlines()[2])["message"].endswith("(5000 characters)")
