"""Test the command ``hookmq``: its subcommands, help, exit codes and error messages."""

import io
import logging
import sys

import pytest
from hookmq.cli import COMMANDS, main
from hookmq.model.errors import BindError, ConfigError, PluginError, StoreError

Captured = pytest.CaptureFixture[str]


def test_without_a_command_the_help_is_shown(capsys: Captured) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: Captured) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: hookmq {name}")
    assert f"examples:\n  hookmq {name}" in out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("word", "meant"), [("sreve", "serve"), ("publish", "pub"), ("plugin", "plugins")]
)
def test_an_unknown_command_suggests(word: str, meant: str, capsys: Captured) -> None:
    assert main([word]) == 2
    assert f"unknown command {word!r}; did you mean {meant!r}?" in capsys.readouterr().err


def test_an_unknown_option_suggests(capsys: Captured) -> None:
    assert main(["pub", "--retian"]) == 2
    assert "unknown argument --retian (did you mean --retain?)" in capsys.readouterr().err
    assert main(["serve", "--log-fmt", "text"]) == 2


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("no", source="f", line=1, column=2, hint="x"), 2, "hookmq: f:1:2: no (x)\n"),
        (PluginError("p", "no"), 3, "hookmq: plugin 'p': no\n"),
        (BindError("taken"), 4, "hookmq: taken\n"),
        (StoreError("full"), 1, "hookmq: full\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "hookmq: x: No such file\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ZeroDivisionError("zero"),
            1,
            "hookmq: ZeroDivisionError: zero\n"
            "This is a bug in HookMQ or in a plugin. HOOKMQ_DEBUG=1 shows the traceback.\n",
        ),
    ],
)
def test_errors_are_one_message_and_a_code(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("hookmq.cli.version.run", fail)
    monkeypatch.delenv("HOOKMQ_DEBUG", raising=False)
    assert main(["version"]) == code
    assert capsys.readouterr() == ("", text)
    if isinstance(error, Exception):
        monkeypatch.setenv("HOOKMQ_DEBUG", "1")
        with pytest.raises(type(error)):
            main(["version"])


def test_an_error_comes_behind_what_was_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """An error that ends the process is printed last, even if the thread that writes the log is late."""

    class Late(logging.Handler):
        def flush(self) -> None:
            print("logged before", file=sys.stderr)

    def fail(arguments: object) -> int:
        raise StoreError("full")

    late = Late()
    monkeypatch.setattr("hookmq.cli.version.run", fail)
    monkeypatch.setattr(logging.getLogger(), "handlers", [late])
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "logged before\nhookmq: full\n"


def test_a_reader_that_left_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise BrokenPipeError

    class Pipe(io.StringIO):
        def fileno(self) -> int:
            raise OSError

    monkeypatch.setattr("hookmq.cli.version.run", fail)
    monkeypatch.setattr(sys, "stdout", Pipe())
    assert main(["version"]) == 1


def test_the_light_commands_import_no_heavy_libraries() -> None:
    import subprocess

    code = (
        "import sys; from hookmq.cli import main; main(['version']); "
        "sys.exit(' '.join({'aiohttp', 'paho', 'yaml', 'uvloop', 'ssl'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
