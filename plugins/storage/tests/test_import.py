"""Test the input of ``hookmq storage import``. If a broker cannot use a record, the error names the record's line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hookmq_storage.client import ADDED
from hookmq_storage.portable import PUBLISHER as OF_PUBLISHER
from hookmq_testing import run_command

HEADER = {"kind": "hookmq-storage", "version": 3}
MESSAGE = {
    "topic": "t", "payload": "eA==", "flags": 5, "properties": None, "sender": None, "origin": "client",
    "received_at": 1.0, "expires_at": None,
}  # fmt: skip
CERTIFICATE: dict[str, Any] = {
    "common_name": "c",
    "subject": "CN=c",
    "sans": ["c"],
    "fingerprint": "ab",
}
BAD_CERTIFICATES: list[Any] = [{}, [], {**CERTIFICATE, "sans": [1]}]
SESSION: dict[str, Any] = {
    "kind": "session", "client_id": "c", "version": 5, "expiry": 10.0, "connected_at": 1.0, "ended_at": 2.0,
    "will_at": None, "username": None, "identity": None, "claims": {}, "listener": "tcp", "mount_point": "",
    "host": "h", "port": 1, "transport": "tls", "vouched_by": "plugin:p", "clean_start": False, "keep_alive": 60,
    "expires_at": 9.5, "expiry_code": 0xA0, "revoked": ["a/#"], "limits": {}, "will": None,
    "certificate": CERTIFICATE,
}  # fmt: skip
PUBLISHER: dict[str, Any] = {
    "kind": "publisher",
    "id": 3,
    **{
        name: value
        for name, value in SESSION.items()
        if name in ("client_id", "version", *OF_PUBLISHER)
    },
}
LINES: dict[str, dict[str, Any]] = {
    "session": SESSION,
    "subscription": {
        "kind": "subscription", "client_id": "c", "filter": "t", "topic_filter": "t", "options": 1,
        "identifier": None, "share": None,
    },
    "received": {"kind": "received", "client_id": "c", "packet_id": 7},
    "publisher": PUBLISHER,
    "retained": {"kind": "retained", **MESSAGE, "publisher": 3},
    "plugin_state": {"kind": "plugin_state", "space": "t/p", "key": "k", "value": "eA==", "due": 1.5},
    "message": {"kind": "message", "id": 1, **MESSAGE},
    "entry": {
        "kind": "entry", "owner": "c/c", "seq": 1, "message": 1, "qos": 1, "size": 2, "retain": 0,
        "identifiers": "1 2", "filter": "t", "share_group": None, "sent": 65537,
    },
}  # fmt: skip


def given(folder: Path, lines: list[Any], end: bool = True) -> int:
    """Import lines and return the exit code."""
    lines = [HEADER, *lines]
    if end:
        lines.append({"kind": "end", "lines": len(lines)})
    (folder / "lines").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run_command(["storage", "import", str(folder / "new"), str(folder / "lines")])


def test_all_of_it_as_it_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert given(tmp_path, list(LINES.values())) == 0
    assert capsys.readouterr().out == "8 records\n"
    assert run_command(["storage", "check", str(tmp_path / "new")]) == 0


def test_an_export_of_version_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export of version 1 can be imported. Its sessions lack some client fields, which remain unknown."""
    session = {name: value for name, value in SESSION.items() if name not in ADDED}
    retained = {"kind": "retained", **MESSAGE}
    lines = [{**HEADER, "version": 1}, session, retained, {"kind": "end", "lines": 3}]
    (tmp_path / "lines").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    folder = str(tmp_path / "new")
    assert run_command(["storage", "import", folder, str(tmp_path / "lines")]) == 0
    capsys.readouterr()
    assert run_command(["storage", "export", folder]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[1:3] == [{**session, **ADDED}, {**retained, "publisher": None}]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("session", "client_id", value) for value in (5, "\ud800")),
        *(("session", name, "x") for name in ("version", "expiry", "ended_at", "will_at", "claims", "limits", "will")),
        ("session", "version", 2),
        ("session", "version", True),
        ("session", "expiry", float("nan")),
        *(("session", "port", value) for value in (-1, 65536, None)),
        *(("session", "certificate", value) for value in BAD_CERTIFICATES),
        *(("session", "clean_start", value) for value in (0, None)),
        *(("session", "expiry_code", value) for value in (0, 999, None)),
        ("session", "limits", {"queue_messages": "many"}),
        ("session", "will", {"delay": 1.0, **MESSAGE, "flags": 3}),
        ("session", "will", MESSAGE),
        *(("subscription", "filter", value) for value in (5, "", "a/#/b")),
        *(("subscription", "options", value) for value in (-1, 3, 48, 1.0)),
        *(("subscription", "identifier", value) for value in (0, 1 << 28)),
        *(("subscription", "client_id", value) for value in ("another", None)),
        *(("received", "packet_id", value) for value in (0, 65536, "7")),
        ("received", "client_id", "another"),
        *(("publisher", "id", value) for value in (0, None, "3")),
        *(("publisher", "claims", value) for value in (None, ["a"])),
        *(("retained", "publisher", value) for value in (0, "3", 4)),
        *(("retained", "topic", value) for value in (5, None, "", "a/#", "a\0")),
        *(("retained", "payload", value) for value in (None, "!", 5)),
        *(("retained", "flags", value) for value in (3, 7, -1, None)),
        *(("retained", "properties", value) for value in ("/////w==", "eA==", "AAA=")),
        *(("plugin_state", "space", value) for value in (None, "p", "c/p", "t/", "s/p")),
        *(("plugin_state", "key", value) for value in (None, 5, "\ud800", "ä" * 513)),
        *(("plugin_state", "value", value) for value in (None, "!", 5)),
        *(("plugin_state", "due", value) for value in (None, "1", float("inf"), True)),
        ("message", "received_at", None),
        ("message", "expires_at", "soon"),
        ("message", "id", -1),
        *(("entry", "owner", value) for value in ("c", "x/c", "c/another", None)),
        *(("entry", "seq", value) for value in ("1", 1 << 63)),
        *(("entry", "message", value) for value in (2, None)),
        ("entry", "qos", 3),
        ("entry", "size", -1),
        *(("entry", "sent", value) for value in (-1, 65536, 131072)),
        *(("entry", "identifiers", value) for value in ("x", "0", "1 ", 5)),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, value: Any
) -> None:
    lines = {**LINES, kind: {**LINES[kind], name: value}}
    assert given(tmp_path, list(lines.values())) == 1
    number = 2 + list(LINES).index(kind)
    assert f"line {number}: not a line of an export: " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lock"]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in LINES for name in LINES[kind]])
def test_a_value_that_is_missing(tmp_path: Path, kind: str, name: str) -> None:
    line = {other: value for other, value in LINES[kind].items() if other != name}
    assert given(tmp_path, list({**LINES, kind: line}.values())) == 1


@pytest.mark.parametrize("kind", list(LINES))
def test_the_same_thing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    lines: list[Any] = []
    for one in LINES.values():
        lines += [one, one] if one["kind"] == kind else [one]
    assert given(tmp_path, lines) == 1
    told = capsys.readouterr().err
    assert "message 1 is a duplicate" in told or f"1 lines of kind {kind} are duplicates" in told


def test_an_export_that_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert given(tmp_path, [SESSION], end=False) == 1
    assert "the export is cut off after line 2" in capsys.readouterr().err
    assert given(tmp_path, [SESSION, {"kind": "end", "lines": 7}], end=False) == 1
    assert "line 3: expected 7 lines before it" in capsys.readouterr().err
    assert given(tmp_path, [{"kind": "end", "lines": 1}, SESSION], end=False) == 1
    assert "line 3: the export has already ended" in capsys.readouterr().err


@pytest.mark.parametrize("line", [[], 5, {}, {"kind": "other"}, {"kind": []}])
def test_an_invalid_line_of_an_export_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Any
) -> None:
    assert given(tmp_path, [line]) == 1
    assert "line 2: not a line of an export" in capsys.readouterr().err


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_bytes(json.dumps(HEADER).encode() + b"\n\xff\xfe\n")
    assert run_command(["storage", "import", str(tmp_path / "new"), str(tmp_path / "lines")]) == 1
    assert "line 2: not a line of an export" in capsys.readouterr().err
