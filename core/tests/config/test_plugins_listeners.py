"""Test how 'check' validates listener types that plugins add."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.model.errors import ConfigError
from hookmq.plugin import Plugin, hookimpl
from hookmq.server.settings import ListenerSettings

Captured = pytest.CaptureFixture[str]


Offer = Callable[..., None]


class Point:
    """A stand-in for an entry point."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def load(self) -> Any:
        if isinstance(self.kind, BaseException):
            raise self.kind
        return self.kind


def package(name: str, kind: Any, owner: str = "") -> InstalledEntry:
    point: Any = Point(kind)
    return InstalledEntry(name, f"m:{name}", owner or f"hookmq-{name}", "1.2", point)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function that replaces the installed plugins: `offer(name=class)`."""

    def install(**kinds: Any) -> None:
        found = tuple(package(name, kind) for name, kind in kinds.items())
        for module in ("hookmq.config.plugins", "hookmq.hooks.discovery"):
            __import__(module)
            monkeypatch.setattr(f"{module}.installed", lambda: found)

    return install


class Serial(Plugin):
    @hookimpl
    def register_listeners(self, registry: Any) -> None:
        registry.add("serial", self.make, check=self.check)

    def make(self, settings: ListenerSettings, accept: Any, runtime: Any) -> Any:
        raise AssertionError("nothing is opened")

    def check(self, settings: ListenerSettings) -> None:
        if settings.settings.get("baud") not in (9600, 19200):
            raise ConfigError("baud: expected 9600 or 19200", hint="as the port is set")


CONFIG = """version: 1
listeners:
  - {name: meters, type: serial, bind: /dev/ttyS0, settings: {baud: 9600}}
  - {name: http, type: http, bind: "*:9090", http: {insecure: true}}
auth: {default: allow}
plugins:
  - use: serial
"""


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("", "", 0, ": valid"),
        ("9600", "7", 2, ":3:62: listeners[0].settings: baud: expected 9600 or 19200 (as the port is set)"),
        ("type: serial", "type: cereal", 2, ":3:26: listeners[0].type: expected one of tcp, tls, ws, wss, unix, http,"),
        ("plugins:\n  - use: serial\n", "", 2, "found the text 'serial'"),
        ("insecure: true", "token: ''", 2, "without a token"),
    ],
)  # fmt: skip
def test_check_knows_the_types_of_plugins(
    old: str,
    new: str,
    code: int,
    words: str,
    offer: Offer,
    tmp_path: pathlib.Path,
    capsys: Captured,
) -> None:
    offer(serial=Serial)
    path = tmp_path / "hookmq.yaml"
    path.write_text(CONFIG.replace(old, new) if old else CONFIG)
    assert main(["check", "-c", str(path)]) == code
    out, err = capsys.readouterr()
    assert words in (err if code else out)
    if not code:
        assert "serial:///dev/ttyS0" in out
        assert "decided by its plugin" in out
        assert "anyone who can reach http (*:9090) can read the metrics" in out
        assert "anyone who can reach meters (/dev/ttyS0) may connect" in out
        assert main(["config", "show", "-c", str(path)]) == 0
        assert "baud: 9600" in capsys.readouterr().out
