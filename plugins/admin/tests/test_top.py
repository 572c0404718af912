"""Test `hookmq top` against a running broker: one snapshot, JSON, refused tokens, and a real terminal."""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from admin_site import Site
from hookmq_admin import top
from hookmq_testing import run_command
from recording import V5, Client
from serving import HOOKMQ, WAIT, serving

CONFIG = """
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: http, type: http, bind: "127.0.0.1:{port}"}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: storage
    config: {{path: ./data}}
  - use: admin
    config: {{first_token_file: token}}
"""


@pytest.fixture(autouse=True)
def _environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])


def test_one_snapshot(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.client("lamp-1")
    assert run_command(["top", "--once", "--client-id", "lamp"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("hookmq ")
    assert "lamp-1" in text
    assert "\x1b" not in text
    assert "q quit" not in text
    assert run_command(["top", "--once", "--json", "--client-id", "lamp"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["client_id"] for one in found["clients"]] == ["lamp-1"]
    assert found["overview"]["connections"] >= 1
    assert "messages_received_total" in found["counters"]


def test_once_fails_clearly(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:1/plugins/admin"
    assert run_command(["top", "--once", "--url", url]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert run_command(["top", "--sort", "speed"]) == 2


def source(file: Path, url: str) -> top._Source:
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    return top._Source(parser.parse_args(["--token-file", str(file), "--url", url]))


def test_a_refused_token_is_not_repeated_but_a_new_one_is_used(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hmq_1_2")
    found = source(file, site.url)
    for _ in range(20):  # more than the limit on wrong tokens
        reason = found.ask("")
        assert isinstance(reason, str)
        assert "a valid token is required (401); if the token has expired" in reason
    file.write_text(site.tokens["viewer"])
    assert not isinstance(found.ask(""), str)
    assert "needs a token with the role operator (403)" in found.kick("lamp-1")


def test_a_broker_that_is_gone_is_asked_again(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(site.tokens["viewer"])
    found = source(file, "http://127.0.0.1:1/plugins/admin")
    for _ in range(2):
        reason = found.ask("")
        assert isinstance(reason, str)
        assert "cannot be reached" in reason
        assert reason.startswith("trying again: ")


class Terminal:
    """A process running in a pseudo-terminal."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [*HOOKMQ, *arguments], stdin=inner, stdout=inner, stderr=inner, close_fds=True,
            start_new_session=True, env={**os.environ, "TERM": "xterm", **environ},
        )  # fmt: skip
        os.close(inner)
        self.text = ""

    def wait_for(self, pattern: str) -> None:
        """Read until `pattern` appears in the output after the last match."""
        end = time.monotonic() + WAIT
        while (found := re.search(pattern, self.text)) is None:
            assert select.select([self._fd], [], [], max(0, end - time.monotonic()))[0], self.text
            self.text += os.read(self._fd, 65536).decode(errors="replace")
        self.text = self.text[found.end() :]

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def close(self) -> int:
        """Read to the end, and return the exit code."""
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 65536):
                self.text += data.decode(errors="replace")
        os.close(self._fd)
        return self.process.wait(WAIT)


@pytest.mark.slow
def test_in_a_terminal_over_a_restart(tmp_path: Path) -> None:
    config, token = tmp_path / "hookmq.yaml", tmp_path / "token"
    config.write_text(CONFIG.format(port=0))
    with serving("-c", str(config), cwd=tmp_path) as broker:
        config.write_text(CONFIG.format(port=broker.ports["http"]))
        url = f"http://127.0.0.1:{broker.ports['http']}/plugins/admin"
        lamp = Client(broker.ports["tcp"], "lamp-1", V5)
        lamp.connect()
        terminal = Terminal(
            "top",
            "--url",
            url,
            "--token-file",
            str(token),
            "--interval",
            "200ms",
            "--timeout",
            "60",
            NO_COLOR="1",
        )
        try:
            terminal.wait_for(r"lamp-1 +- +yes")
            assert "\x1b[7m" not in terminal.text
            terminal.press("\x1b[B")
            terminal.wait_for(r">lamp-1")
            terminal.press("k")
            terminal.wait_for(r"disconnect lamp-1\? y/n")
            terminal.press("y")
            terminal.wait_for("lamp-1 was disconnected")
            assert lamp.ends.get(timeout=WAIT) == 0x98
            lamp.paho.loop_stop()
            broker.stop()
            terminal.wait_for("trying again: .* cannot be reached")
        except BaseException:
            terminal.process.kill()
            raise
    try:
        with serving("-c", str(config), cwd=tmp_path) as broker:
            with Client(broker.ports["tcp"], "bulb-2", V5) as bulb:
                bulb.connect()
                terminal.wait_for("bulb-2 +- +yes")
            terminal.press("q")
            assert terminal.close() == 0
            assert terminal.text.endswith("\x1b[?25h\x1b[?1049l")
            dumb = subprocess.run(
                [*HOOKMQ, "top", "--url", url, "--token-file", str(token), "--once"],
                env={**os.environ, "TERM": "dumb"}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert "\x1b" not in dumb.stdout
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
