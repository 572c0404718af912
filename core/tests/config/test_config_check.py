"""Test the check of a configuration document against the configuration in force."""

from pathlib import Path

import pytest
from hookmq.config.config_check import check_document
from hookmq.config.model import Config, loads
from hookmq.model.reload_report import ConfigCheck, ConfigMistake, ReloadReport

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


def test_mistakes_are_values() -> None:
    assert ConfigMistake("a") == ConfigMistake("a", 0, 0, "")
