"""Test how a configuration document is checked against the configuration in force."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hookmq.config.config_check import MOST, ConfigChecker, check_document
from hookmq.config.model import Config, loads
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.model.errors import ConfigError
from hookmq.model.reload_report import ConfigCheck, ConfigMistake, ReloadReport
from hookmq.plugin import Plugin, hookimpl

BASE = """version: 1
listeners: [{name: a, bind: '127.0.0.1:0'}]
auth: {default: allow}
authz: {default: allow}
"""


def check(text: str, folder: Path = Path()) -> ConfigCheck:
    def read(given: str) -> Config:
        return loads(given, "document", environ={}, folder=folder)

    return check_document(text, read, loads(BASE, environ={}))


def test_changes() -> None:
    assert check(BASE) == ConfigCheck(changes=ReloadReport())
    found = check(BASE + "broker: {max_qos: 1, max_topic_levels: 9}\n").changes
    assert found is not None
    assert [one.path for one in found.applied] == ["broker.max_qos"]
    assert [one.path for one in found.restart] == ["broker.max_topic_levels"]


def test_every_mistake_has_its_place() -> None:
    found = check(BASE + "broker:\n  max_qos: 7\n  max_qso: 1\n")
    assert found.changes is None
    assert [(one.line, one.column) for one in found.mistakes] == [(6, 12), (7, 3)]
    assert "max_qos" in found.mistakes[0].message
    assert "did you mean 'max_qos'?" in found.mistakes[1].hint


@pytest.mark.parametrize("text", ["", "a: [", "- a\n", "a: &a [*a]\n"])
def test_other_documents(text: str) -> None:
    found = check(text)
    assert found.mistakes
    assert found.changes is None


def test_plugins_are_found_and_their_settings_checked_but_none_is_constructed() -> None:
    (missing,) = check(BASE + "plugins: [{use: nothing_of_this_name}]\n").mistakes
    assert (missing.line, "no plugin named" in missing.message) == (5, True)
    assert not check(BASE + "plugins: [{use: nothing_of_this_name, required: false}]\n").mistakes


def test_the_content_of_a_file_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    text = BASE + "broker: {max_qos: {$file: secret}, server_reference: {$file: secret}}\n"
    found = check(text, tmp_path)
    assert found.mistakes
    assert "hunter2" not in repr(found)
    found = check(BASE + "broker: {server_reference: {$file: secret}}\n", tmp_path)
    assert "hunter2" not in repr(found)
    assert found.changes is not None
    assert found.changes.applied[0].new == "***"


@pytest.mark.parametrize("content", ["hunter2", "hunter2 'and more'\nof it"])
@pytest.mark.parametrize(
    "section",
    [
        "listeners: [{name: a, bind: FILE}]",
        "listeners: [{name: FILE, bind: '127.0.0.1:1'}]",
        "listeners: [{name: FILE, bind: '127.0.0.1:1'}, {name: FILE, bind: '127.0.0.1:2'}]",
        "listeners: [{name: a, type: FILE, bind: '127.0.0.1:1'}]",
        "listeners: [{name: a, type: FILE, bind: '127.0.0.1:1', tls: {certificate: c, key: k}}]",
        "listeners: [{name: a, mount_point: FILE}]",
        "listeners: [{name: a, trusted_proxies: [FILE]}]",
        "listeners: [{name: a, type: ws, websocket: {path: FILE}}]",
        "listeners: [{name: a}]\nplugins: [{use: FILE}]",
        "listeners: [{name: a}]\nplugins: [{use: FILE, required: false}]",
        "listeners: [{name: a}]\nplugins: [{use: none, required: false, id: FILE}]",
        "listeners: [{name: a}]\nplugins: [{use: none, required: false, listeners: [FILE]}]",
        "listeners: [{name: a}]\nplugins: [{use: none, required: false, filters: [FILE]}]",
        "listeners: [{name: a}]\nplugins: [{use: none, required: false, hooks: {FILE: {}}}]",
        "listeners: [{name: a}]\nlog: {level: FILE, format: FILE}",
        "listeners: [{name: a}]\nbroker: FILE",
    ],
)
def test_no_mistake_and_no_change_shows_a_file(tmp_path: Path, section: str, content: str) -> None:
    (tmp_path / "secret").write_text(content)
    found = check("version: 1\n" + section.replace("FILE", "{$file: secret}"), tmp_path)
    assert found.mistakes or found.changes
    assert "hunter2" not in repr(found)


@dataclass(frozen=True)
class Settings:
    text: str = ""

    def __post_init__(self) -> None:
        if self.text.startswith("hunter"):
            raise KeyError(self.text)


class Keeper(Plugin):
    Config = Settings

    @hookimpl
    def provide_store(self) -> None:
        raise AssertionError("no plugin is constructed")


class Supple(Keeper):
    def reconfigure(self, config: object) -> None:
        raise AssertionError("no plugin is constructed")


class Plain(Plugin):
    Config = Settings


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def offer(name: str, kind: type[Plugin]) -> InstalledEntry:
        point: Any = SimpleNamespace(load=lambda: kind)
        return InstalledEntry(name, f"m:{name}", name, "1", point)

    found = (offer("keeper", Keeper), offer("supple", Supple), offer("plain", Plain))
    monkeypatch.setattr("hookmq.config.config_check.installed", lambda: found)


def test_a_plugin_that_fails_to_check_its_settings(offered: None, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    text = BASE + "plugins: [{use: plain, config: {text: {$file: secret}}}]\n"
    (found,) = check(text, tmp_path).mistakes
    assert (found.line, found.message) == (
        5, "plugins[0]: the plugin fails to check its settings: KeyError"
    )  # fmt: skip


def test_a_plugin_that_cannot_change_while_the_broker_runs(offered: None) -> None:
    def parts(before: str, after: str) -> tuple[list[str], list[str]]:
        running = loads(f"{BASE}plugins: [{before}]\n", environ={})
        text = f"{BASE}plugins: [{after}]\n"
        found = check_document(text, lambda given: loads(given, environ={}), running).changes
        assert found is not None
        return [one.path for one in found.applied], [one.path for one in found.restart]

    changed = "config: {text: a}}"
    assert parts("{use: plain}", "{use: plain, " + changed) == (["plugins.plain.config.text"], [])
    assert parts("{use: supple}", "{use: supple, " + changed)[1] == []
    assert parts("{use: keeper}", "{use: keeper, " + changed) == (
        [],
        ["plugins.keeper.config.text"],
    )
    assert parts("{use: keeper}", "") == ([], ["plugins.keeper"])
    assert parts("", "{use: keeper, id: k}") == ([], ["plugins.k"])
    assert parts("{use: plain, id: k}", "{use: keeper, id: k}") == ([], ["plugins.k.use"])
    assert parts("{use: keeper}", "{use: keeper, enabled: false}")[1] == ["plugins.keeper.enabled"]
    assert parts("{use: keeper}", "{use: keeper, listeners: [a]}")[1] == []


def test_the_list_of_mistakes_ends() -> None:
    found = check(BASE + "".join(f"k{number}: 1\n" for number in range(MOST + 7))).mistakes
    assert len(found) == MOST + 1
    assert found[-1] == ConfigMistake("7 further mistakes")


def test_a_large_file_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 65_537)
    (found,) = check(BASE + "broker: {server_reference: {$file: large}}\n", tmp_path).mistakes
    assert "is larger than 65536 bytes" in found.message


def test_one_check_at_a_time() -> None:
    began, go_on = threading.Event(), threading.Event()
    running = loads(BASE, environ={})

    def read(given: str) -> Config:
        began.set()
        assert go_on.wait(60)
        return running

    checker = ConfigChecker(read, lambda: running)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(checker, BASE)
        assert began.wait(60)
        with pytest.raises(ConfigError, match="another check is running"):
            checker(BASE)
        go_on.set()
        assert first.result(60) == checker(BASE) == ConfigCheck(changes=ReloadReport())


def test_mistakes_are_values() -> None:
    assert ConfigMistake("a") == ConfigMistake("a", 0, 0, "")
