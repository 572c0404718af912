"""Test commands that installed plugins add."""

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.cli import COMMANDS, main
from hookmq.hooks.discovery import InstalledPlugin, load
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import ConfigError, PluginError
from hookmq.plugin import Context, Plugin, hookimpl

Captured = pytest.CaptureFixture[str]
Offer = Callable[..., None]


class Greeter(Plugin):
    """A plugin that adds commands with a staticmethod. The class must never be instantiated."""

    def __init__(self, config: Any, context: Context) -> None:
        raise AssertionError("a command needs no object")

    @staticmethod
    @hookimpl
    def register_cli(group: Any) -> None:
        parser = group.add_parser(
            "greet", help="greet somebody", epilog="examples:\n  hookmq greet"
        )
        parser.add_argument("name")
        parser.add_argument("--loud", action="store_true")
        parser.set_defaults(run=Greeter.greet)

    @staticmethod
    def greet(arguments: argparse.Namespace) -> int | None:
        if arguments.name == "nobody":
            raise ConfigError("nobody is there", hint="name somebody")
        print("HELLO" if arguments.loud else "hello", arguments.name)
        return 5 if arguments.name == "five" else None


class Nested(Plugin):
    """A plugin that adds nested commands, with a classmethod that has another name."""

    word = "done"

    @classmethod
    @hookimpl(specname="register_cli")
    def commands(cls, group: Any) -> None:
        actions = group.add_parser("acl", help="access rules").add_subparsers()
        test = actions.add_parser("test")
        test.add_argument("topic")
        test.set_defaults(run=lambda arguments: print(cls.word, arguments.topic))


class Silent(Plugin):
    """A plugin that adds no command."""


class Fails(Plugin):
    @staticmethod
    @hookimpl
    def register_cli(group: Any) -> None:
        group.add_parser("half", help="never seen")
        raise RuntimeError("boom")


class Leaves(Plugin):
    @staticmethod
    @hookimpl
    def register_cli() -> None:
        sys.exit(9)


class Instance(Plugin):
    @hookimpl
    def register_cli(self, group: Any) -> None:
        """An invalid implementation that needs an instance."""


class Unmarked(Plugin):
    @classmethod
    def register_cli(cls, group: Any) -> None:
        """An invalid implementation without @hookimpl."""


class Above(Plugin):
    """An implementation with its decorators in the opposite order."""

    @hookimpl
    @staticmethod
    def register_cli(group: Any) -> None:
        group.add_parser("above", help="above").set_defaults(run=lambda _: 4)


class Later(Plugin):
    @staticmethod
    @hookimpl
    async def register_cli(group: Any) -> None:
        """An invalid implementation that is a coroutine."""


class Wrong(Plugin):
    @staticmethod
    @hookimpl
    def register_cli(grupo: Any) -> None:
        """An invalid implementation with an unknown argument."""


def added(name: str) -> type[Plugin]:
    class Adds(Plugin):
        @staticmethod
        @hookimpl
        def register_cli(group: Any) -> None:
            group.add_parser(name, help="adds")

    return Adds


class Point:
    """A stand-in for an entry point."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def load(self) -> Any:
        if isinstance(self.kind, BaseException):
            raise self.kind
        return self.kind


def package(name: str, kind: Any, owner: str = "") -> InstalledPlugin:
    point: Any = Point(kind)
    return InstalledPlugin(name, f"m:{name}", owner or f"hookmq-{name}", "1.2", point)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return a function: `offer(name=class)` makes these the installed plugins."""

    def install(**kinds: Any) -> None:
        found = tuple(package(name, kind) for name, kind in kinds.items())
        for module in ("hookmq.cli.commands", "hookmq.config.plugins", "hookmq.hooks.discovery"):
            __import__(module)
            monkeypatch.setattr(f"{module}.installed", lambda: found)

    return install


def test_a_plugins_command_runs(offer: Offer, capsys: Captured) -> None:
    offer(greeter=Greeter, silent=Silent)
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
    offer(nested=Nested, above=Above)
    assert main(["above"]) == 4
    assert main(["acl", "test", "a/b"]) == 0
    assert capsys.readouterr().out == "done a/b\n"
    assert main(["acl"]) == 2
    assert "hookmq acl: a command is required" in capsys.readouterr().err
    assert main(["acl", "test", "a", "b"]) == 2
    assert "unknown argument b" in capsys.readouterr().err


def test_help_lists_them_behind_our_own(offer: Offer, capsys: Captured) -> None:
    offer(nested=Nested, greeter=Greeter)
    for words, code in (([], 2), (["--help"], 0), (["-h"], 0), (["help"], 0)):
        assert main(words) == code
        out = capsys.readouterr().out
        ours, _, theirs = out.partition("\ncommands of plugins:\n")
        assert all(f"  {name} " in ours for name in COMMANDS)
        assert theirs.startswith("  acl         access rules\n  greet       greet somebody\n\n")
    assert main(["greet", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: hookmq greet [-h] [--loud] name\n\nGreet somebody.\n")
    assert main(["help", "greet"]) == 0
    assert capsys.readouterr().out == out


def test_the_manual_has_our_own_only(offer: Offer, capsys: Captured) -> None:
    offer(greeter=Greeter, broken=RuntimeError("no"))
    assert main(["help", "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert "greet" not in out
    assert err == ""


def test_an_unknown_command_suggests_theirs(offer: Offer, capsys: Captured) -> None:
    offer(greeter=Greeter)
    assert main(["gret"]) == 2
    assert "unknown command 'gret'; did you mean 'greet'?" in capsys.readouterr().err
    assert main(["help", "gret"]) == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            ImportError("no lxml"),
            "importing m:bad of hookmq-bad 1.2 failed: ImportError('no lxml')",
        ),
        (SystemExit(3), "SystemExit(3)"),
        (object, "is not a subclass of hookmq.plugin.Plugin"),
        (Fails, "RuntimeError('boom')"),
        (Leaves, "SystemExit(9)"),
        (Instance, "it must be a @staticmethod or @classmethod"),
        (Unmarked, "is not marked @hookimpl"),
        (Later, "register_cli cannot be async"),
        (Wrong, "argument 'grupo' of register_cli is not one of register_cli(group)"),
        (added("serve"), "the command 'serve' exists already"),
        (added("help"), "the command 'help' exists already"),
        (added("Pass Wd"), "invalid command name 'Pass Wd'"),
    ],
)
def test_a_broken_plugin_costs_a_warning(
    kind: Any, words: str, offer: Offer, capsys: Captured
) -> None:
    offer(bad=kind, greeter=Greeter)
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "  greet " in out
    assert "half" not in out
    assert err.startswith("hookmq: warning: plugin 'bad' (hookmq-bad 1.2): ")
    assert words in err
    assert err.count("\n") == 1
    assert main(["greet", "you"]) == 0


def test_our_own_commands_look_at_no_plugin(offer: Offer, capsys: Captured) -> None:
    offer(bad=RuntimeError("imported"))
    assert main(["version"]) == 0
    assert capsys.readouterr().err == ""


def test_a_command_of_two_plugins_is_neithers(offer: Offer, capsys: Captured) -> None:
    offer(one=added("same"), two=added("same"))
    assert main(["same"]) == 3
    assert (
        "hookmq-one 1.2 and hookmq-two 1.2 both add the command 'same'" in capsys.readouterr().err
    )
    assert main(["--help"]) == 0


@pytest.mark.parametrize("kind", [Instance, Unmarked, Later, Wrong])
def test_a_plugin_whose_register_cli_needs_an_instance_is_not_loaded(kind: type[Plugin]) -> None:
    with pytest.raises(PluginError, match="'bad'"):
        load(package("bad", kind))
    with pytest.raises(PluginError, match="'bad'"):
        Hooks.of(kind(None, Context("bad")))


def test_a_real_package_is_found(tmp_path: pathlib.Path) -> None:
    """The commands of a real package are found. The test uses entry points in the file system and a
    separate process.
    """
    (tmp_path / "hq_cmd.py").write_text(
        "from hookmq.plugin import Plugin, hookimpl\n"
        "class Cmd(Plugin):\n"
        "    @staticmethod\n"
        "    @hookimpl\n"
        "    def register_cli(group):\n"
        "        group.add_parser('cmd', help='do').set_defaults(run=lambda a: print('did'))\n"
    )
    (tmp_path / "hq_bad.py").write_text("import no_such_module_of_anybody\n")
    info = tmp_path / "hq_cmd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hq-cmd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hookmq.plugins]\ncmd = hq_cmd:Cmd\nbad = hq_bad:Bad\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from hookmq.cli import main; sys.exit(main())"
    run = [sys.executable, "-c", code]
    done = subprocess.run([*run, "cmd"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "did\n")
    assert "hookmq: warning: plugin 'bad' (hq-cmd 1.0): importing hq_bad:Bad" in done.stderr
    done = subprocess.run(
        [*run, "--help"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0
    assert ["cmd", "do"] in [line.split() for line in done.stdout.splitlines()]


# listeners of a plugin's type in a configuration -----------------------------------------------------------------
