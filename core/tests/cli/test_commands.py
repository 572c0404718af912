"""Test commands provided by installed plugins."""

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.cli import COMMANDS, commands, main
from hookmq.cli.completion import candidates
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.model.errors import ConfigError

Captured = pytest.CaptureFixture[str]
Offer = Callable[..., None]


def greet(parser: argparse.ArgumentParser) -> None:
    parser.description = "Greet somebody.\n\nLoudly, if you like."
    parser.epilog = "examples:\n  hookmq greet"
    parser.add_argument("name")
    parser.add_argument("--loud", action="store_true")
    parser.set_defaults(run=_greet)


def _greet(arguments: argparse.Namespace) -> int | None:
    if arguments.name == "nobody":
        raise ConfigError("nobody is there", hint="name somebody")
    print("HELLO" if arguments.loud else "hello", arguments.name)
    return 5 if arguments.name == "five" else None


def nested(parser: argparse.ArgumentParser) -> None:
    parser.description = "ACL rules."
    test = parser.add_subparsers().add_parser("test")
    test.add_argument("topic")
    test.set_defaults(run=lambda arguments: print("done", arguments.topic))


def silent(parser: argparse.ArgumentParser) -> None:
    """A command without a description."""
    parser.set_defaults(run=lambda _: 4)


def fails(parser: argparse.ArgumentParser) -> None:
    raise RuntimeError("boom")


def leaves(parser: argparse.ArgumentParser) -> None:
    sys.exit(9)


def numbers(parser: argparse.ArgumentParser) -> None:
    parser.description = 5  # type: ignore[assignment]


def percent(parser: argparse.ArgumentParser) -> None:
    parser.description = "Use %(prog)s at 100% of speed."


def named(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run %(prog)s with %(prog)s."
    parser.epilog = "100% done"
    parser.set_defaults(run=lambda _: 0)


class Point:
    """A stand-in for an entry point."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def load(self) -> Any:
        if isinstance(self.target, BaseException):
            raise self.target
        return self.target


def command(name: str, target: Any, owner: str = "") -> InstalledEntry:
    point: Any = Point(target)
    return InstalledEntry(name, f"m:{name}", owner or f"hookmq-{name}", "1.2", point)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function that sets the installed commands: `offer(name=function)` takes functions, and `offer(entry,
    ...)` takes entry points.
    """

    def install(*others: InstalledEntry, **functions: Any) -> None:
        found = (*(command(name, function) for name, function in functions.items()), *others)
        monkeypatch.setattr(commands, "entries", lambda group: found)

    return install


def test_a_plugins_command_runs(offer: Offer, capsys: Captured) -> None:
    offer(greet=greet, silent=silent)
    assert main(["greet", "you"]) == 0
    assert main(["greet", "--loud", "you"]) == 0
    assert main(["greet", "five"]) == 5
    assert capsys.readouterr() == ("hello you\nHELLO you\nhello five\n", "")
    assert main(["greet", "nobody"]) == 2
    assert capsys.readouterr() == ("", "hookmq: nobody is there (name somebody)\n")
    assert main(["greet", "you", "--lout"]) == 2
    assert "did you mean --loud?" in capsys.readouterr().err
    assert main(["greet"]) == 2


def test_commands_below_a_command(offer: Offer, capsys: Captured) -> None:
    offer(acl=nested, silent=silent)
    assert main(["silent"]) == 4
    assert main(["acl", "test", "a/b"]) == 0
    assert capsys.readouterr().out == "done a/b\n"
    assert main(["acl"]) == 2
    assert "hookmq acl: a command is required" in capsys.readouterr().err
    assert main(["acl", "test", "a", "b"]) == 2
    assert "unknown argument b" in capsys.readouterr().err


def test_help_lists_them_behind_our_own(offer: Offer, capsys: Captured) -> None:
    offer(acl=nested, greet=greet, silent=silent)
    for words, code in (([], 2), (["--help"], 0), (["-h"], 0), (["help"], 0)):
        assert main(words) == code
        out = capsys.readouterr().out
        ours, _, theirs = out.partition("\ncommands of plugins:\n")
        assert all(f"  {name} " in ours for name in COMMANDS)
        listed = "  acl         ACL rules\n  greet       greet somebody\n  silent      a command of hookmq-silent\n\n"
        assert theirs.startswith(listed)
    assert main(["greet", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: hookmq greet [-h] [--loud] name\n\nGreet somebody.\n\nLoudly")
    assert main(["help", "greet"]) == 0
    assert capsys.readouterr().out == out


def test_the_manual_has_our_own_only(offer: Offer, capsys: Captured) -> None:
    offer(greet=greet, broken=RuntimeError("no"))
    assert main(["help", "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "greet" not in out
    assert err == ""


def test_an_unknown_command_suggests_theirs(offer: Offer, capsys: Captured) -> None:
    offer(greet=greet, grit=RuntimeError("imported"))
    assert main(["greeet"]) == 2
    assert "unknown command 'greeet'; did you mean 'greet'?" in capsys.readouterr().err
    assert main(["help", "greeet"]) == 2


def test_their_names_are_completed_without_an_import(offer: Offer, capsys: Captured) -> None:
    offer(greet=greet, bad=RuntimeError("imported"), **{"Pass Wd": greet})
    assert set(candidates([""])) == {*COMMANDS, "help", "greet", "bad"}
    assert candidates(["greet", "--l"]) == ["--loud"]
    assert main(["completion", "--words", "bad", ""]) == 3
    assert capsys.readouterr().out == ""


BROKEN = [
    (
        "bad",
        ImportError("no lxml"),
        "importing m:bad of hookmq-bad 1.2 failed: ImportError('no lxml')",
    ),
    ("bad", SystemExit(3), "importing m:bad of hookmq-bad 1.2 failed: SystemExit(3)"),
    ("bad", 7, "m:bad is not a function"),
    ("bad", fails, "m:bad failed: RuntimeError('boom')"),
    ("bad", leaves, "m:bad failed: SystemExit(9)"),
    ("serve", greet, "the command 'serve' exists already"),
    ("help", greet, "the command 'help' exists already"),
    ("Pass Wd", greet, "invalid command name 'Pass Wd'"),
]


@pytest.mark.parametrize(("name", "target", "words"), BROKEN)
def test_a_broken_command_costs_a_warning(
    name: str, target: Any, words: str, offer: Offer, capsys: Captured
) -> None:
    offer(command(name, target, "hookmq-bad"), greet=greet)
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "  greet " in out
    assert "\n  bad" not in out
    assert err.startswith(f"hookmq: warning: command {name!r} of hookmq-bad 1.2: {words}")
    assert err.count("\n") == 1
    assert main(["greet", "you"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "target", "words"), [one for one in BROKEN if one[0] not in ("serve", "help")]
)
def test_a_broken_command_does_not_run(
    name: str, target: Any, words: str, offer: Offer, capsys: Captured
) -> None:
    offer(command(name, target, "hookmq-bad"))
    assert main([name]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"hookmq: plugin 'hookmq-bad': {words}")


def test_our_own_commands_look_at_no_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def fail(group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr(commands, "entries", fail)
    assert main(["version"]) == 0
    assert capsys.readouterr().err == ""


def test_a_command_of_two_plugins_is_neithers(offer: Offer, capsys: Captured) -> None:
    offer(command("same", greet, "hookmq-one"), command("same", greet, "hookmq-two"))
    words = "hookmq-one 1.2 and hookmq-two 1.2 both add the command 'same'"
    assert main(["same"]) == 3
    assert words in capsys.readouterr().err
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "\n  same" not in out
    assert words in err


def test_a_real_package_is_found_and_no_other_is_imported(tmp_path: pathlib.Path) -> None:
    """The commands of a real package are found through entry points in the file system."""
    (tmp_path / "hq_cmd.py").write_text(
        "def add_arguments(parser):\n"
        "    parser.description = 'Do.'\n"
        "    parser.set_defaults(run=lambda a: print('did'))\n"
    )
    (tmp_path / "hq_bad.py").write_text("import no_such_module_of_anybody\n")
    info = tmp_path / "hq_cmd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hq-cmd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hookmq.commands]\ncmd = hq_cmd:add_arguments\nbad = hq_bad:add_arguments\n"
        "[hookmq.plugins]\ncmd = hq_bad:Plugin\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from hookmq.cli import main; sys.exit(main())"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    done = run("cmd")
    assert (done.returncode, done.stdout, done.stderr) == (0, "did\n", "")
    done = run("--help")
    assert done.returncode == 0
    assert ["cmd", "do"] in [line.split() for line in done.stdout.splitlines()]
    assert "hookmq: warning: command 'bad' of hq-cmd 1.0: importing hq_bad:add" in done.stderr


def test_a_description_that_argparse_cannot_format_breaks_no_other_help(
    offer: Offer, capsys: Captured
) -> None:
    offer(numbers=numbers, percent=percent, named=named)
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert out.partition("commands of plugins:\n")[2].startswith(
        "  named       run hookmq named with hookmq named\n\n"
    )
    for name in ("numbers", "percent"):
        assert f"command {name!r} of hookmq-{name} 1.2: its help is broken: " in err
    assert main(["named", "--help"]) == 0
