"""Test the commands `hookmq webhook test`, `listen`, `schema`, `secret` and `key`."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hookmq_testing import run_command
from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.envelope import Envelope, encode
from hookmq_webhook.kit import told
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample
from hookmq_webhook_receiver import Ledger, new_private_key, new_secret, public_key
from hookmq_webhook_receiver.keys import key_of
from hookmq_webhook_receiver.signature import sign

SECRET = new_secret()


def config(tmp_path: Path, url: str, **settings: Any) -> str:
    path = tmp_path / "hookmq.yaml"
    entry = {
        "use": "webhook",
        "config": {"url": url, "outbox": {"path": str(tmp_path / "outbox")}, **settings},
    }
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    path.write_text(json.dumps({"version": 1, "listeners": listeners, "plugins": [entry]}))
    return str(path)


@contextmanager
def listening(*arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `hookmq webhook listen` and yield its URL."""
    command = [sys.executable, "-m", "hookmq.cli", "webhook", "listen", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        yield line.split()[-1], process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def test_a_sample_of_each_event_is_received(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(f"{new_secret()}\n\n{SECRET}\n")
    with listening("--secret-file", str(secrets)) as (url, process):
        path = config(tmp_path, url, sign={"secret": SECRET})
        assert run_command(["webhook", "test", "-c", path]) == 0
        lines = capsys.readouterr().out.splitlines()
        process.terminate()
        assert process.stdout is not None
        shown = process.stdout.read()
        assert process.wait(60) == 0
    assert [line.partition(":")[0] for line in lines] == list(CATALOG)
    assert all(": arrived, 204, " in line and line.endswith(" ms") for line in lines)
    for name in CATALOG:
        assert f" hookmq.{name} test" in shown
    assert shown.count("(verified)") == len(CATALOG)
    assert not (tmp_path / "outbox").exists()  # the test event is not stored


@pytest.mark.slow
def test_requests_with_an_invalid_signature_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(new_secret())
    with listening("--secret-file", str(secrets), "--count", "2") as (url, process):
        path = config(tmp_path, url, sign={"secret": SECRET})
        command = ["webhook", "test", "-c", path, "--event", "broker.st*", "--plugin", "webhook"]
        assert run_command(command) == 1
        lines = capsys.readouterr().out.splitlines()
        assert process.stdout is not None
        shown = process.stdout.read()
        assert process.wait(60) == 0  # by itself, after two
    assert [line.split(" ms")[0].rpartition(",")[0] for line in lines] == [
        "broker.started: failed, status 401",
        "broker.stopping: failed, status 401",
    ]
    why = "made with another secret, or for another body"
    assert shown.splitlines() == [f"refused: webhook-signature: {why}"] * 2


async def test_an_answer_is_shown_up_to_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=418, text="\x1b[31m" + "x" * 100_000)

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    path = config(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}/", mode="best_effort")
    command = ["webhook", "test", "-c", path, "--event", "message.published"]
    assert await asyncio.to_thread(run_command, command) == 1
    await runner.cleanup()
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("message.published: failed, status 418, ")
    assert line.endswith('ms, "\\u001b[31m' + "x" * 195 + '..."')
    assert await asyncio.to_thread(run_command, command) == 1  # the receiver has ended
    assert ": failed, connection refused, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--event", "clients.*"], "no event matches 'clients.*'"),
        (["--event", "mine.event"], "no sample of these events"),
        (["--id", "other"], "no plugin with the id 'other'"),
    ],
)
def test_impossible_test_commands_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    path = config(tmp_path, "http://127.0.0.1:1/")
    assert run_command(["webhook", "test", "-c", path, *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "contains no secret"),
        (b"x\n", "whsec_"),
        (b"\xff", "not a text file"),
        (None, "No such file"),
    ],
)
def test_files_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, says: str
) -> None:
    path = tmp_path / "secrets"
    if text is not None:
        path.write_bytes(text)
    assert run_command(["webhook", "listen", "--port", "0", "--secret-file", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_an_address_that_cannot_be_bound_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["webhook", "listen", "--host", "192.0.2.1", "--port", "0"]) == 4
    assert "192.0.2.1:0" in capsys.readouterr().err
    assert run_command(["webhook", "listen", "--status", "99"]) == 2


def test_nothing_shown_is_for_a_terminal_to_obey() -> None:
    event = sample("message.published")._replace(topic="a\x1b[2Jb\n\u202e", client="\x07")
    ledger = Ledger()
    line: str | None = ""
    for mode in ("structured", "binary", "plain"):
        headers, body = encode(Envelope("urn:x", "e", mode), [Numbered(1, event, 0)])
        [line] = told(headers, body, [], ledger)
        assert line is not None
        assert line.isascii()
        assert all(part.isprintable() for part in line.split("\n"))
    assert line is not None
    assert "(not verified, repeated)" in line
    headers, body = encode(Envelope("urn:x", "e"), [Numbered(4, event, 0)])
    headers |= sign("x", int(time.time()), body, [key_of(SECRET)])
    [line] = told(headers, body, [SECRET], ledger)
    assert line is not None
    assert "(verified, 2 missing)" in line
    why = "Expecting value: line 1 column 1 (char 0)"
    assert told({}, b"\x1b{", [], ledger) == [f"not an event of HookMQ: {why}"]
    raw = sample("message.published")._replace(payload=b"\xff\xfe")
    headers, body = encode(Envelope("urn:x", "e", content="payload"), [Numbered(5, raw, 0)])
    [line] = told(headers, body, [], ledger)
    assert line is not None
    assert '"data": "<2 bytes>"' in line


def test_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["webhook", "schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CATALOG)
    assert run_command(["webhook", "schema", "will.published"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "will.published"
    assert run_command(["webhook", "schema", "will.publish"]) == 2
    assert "did you mean 'will.published'?" in capsys.readouterr().err
    assert run_command(["webhook", "schema", "client.*"]) == 2
    assert run_command(["webhook", "schema", "mine.event"]) == 1


def test_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["webhook", "secret"]) == 0
    first = capsys.readouterr().out
    assert run_command(["webhook", "secret"]) == 0
    assert key_of(first) != key_of(capsys.readouterr().out)
    assert len(key_of(first)) == 32


def test_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hook.key"
    assert run_command(["webhook", "key", "-o", str(path)]) == 0
    shown = capsys.readouterr().out.strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert shown == public_key(path.read_text())
    assert run_command(["webhook", "key", "--public", str(path)]) == 0
    assert capsys.readouterr().out.strip() == shown
    assert run_command(["webhook", "key"]) == 0
    private, public = capsys.readouterr().out.split()
    assert public_key(private) == public != shown
    before = path.read_text()
    assert run_command(["webhook", "key", "-o", str(path)]) != 0
    assert path.read_text() == before  # a key that is in use is not replaced


@pytest.mark.parametrize("text", ["whsk_c2hvcnQ=", "whpk_AAAA", None])
def test_files_without_a_private_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "hook.key"
    if text is not None:
        path.write_text(text)
    assert run_command(["webhook", "key", "--public", str(path)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "c2hvcnQ" not in said


@pytest.mark.slow
def test_a_receiver_needs_only_the_public_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = new_private_key()
    keys = tmp_path / "keys"
    keys.write_text(f"{new_secret()}\n{public_key(private)}\n")
    with listening("--secret-file", str(keys), "--count", "2") as (url, process):
        for key, code in ((private, 0), (new_private_key(), 1)):
            path = config(tmp_path, url, sign={"private_key": key})
            assert (
                run_command(["webhook", "test", "-c", path, "--event", "client.connected"]) == code
            )
        assert process.wait(60) == 0
    assert "failed, status 401" in capsys.readouterr().out
