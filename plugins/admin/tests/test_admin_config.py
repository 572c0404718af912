"""Test checking a configuration through the API and on the command line."""

import json
from pathlib import Path

import pytest
from admin_site import CHANGE, DOCUMENT, Site, validate
from hookmq.plugin import ConfigCheck, ConfigMistake, ReloadReport, SettingChange
from hookmq_testing import run_command

SCHEMA = DOCUMENT["components"]["schemas"]["ConfigCheck"]
MISTAKE = ConfigMistake("broker.max_qso: unknown key", 3, 5, "did you mean 'max_qos'?")


def test_mistakes_and_changes_are_returned_and_the_document_is_not_recorded(site: Site) -> None:
    site.checks["a: secret"] = ConfigCheck((MISTAKE, ConfigMistake("b")))
    found = site.ask("POST", "/configuration/check", json={"yaml": "a: secret"}).json
    validate(found, SCHEMA)
    assert (found["valid"], found["changes"], len(found["mistakes"])) == (False, None, 2)
    assert (found["mistakes"][0]["line"], found["mistakes"][0]["column"]) == (3, 5)
    entry = site.audit()[0]
    assert (entry["action"], entry["arguments"]) == (
        "checkConfiguration",
        {"yaml": "<9 characters>"},
    )
    site.checks["b"] = ConfigCheck(
        changes=ReloadReport((CHANGE,), (SettingChange("loop", "a", "b"),))
    )
    found = site.ask("POST", "/configuration/check", json={"yaml": "b"}).json
    validate(found, SCHEMA)
    assert [one["path"] for one in found["changes"]["needs_restart"]] == ["loop"]


def test_who_may_check_and_what(site: Site) -> None:
    body = {"yaml": "b"}
    assert site.ask("POST", "/configuration/check", "operator", json=body).status == 403
    assert site.ask("POST", "/configuration/check", json={}).json["field"] == "yaml"
    kept, site.broker.check_config = site.broker.check_config, None
    assert site.ask("POST", "/configuration/check", json=body).status == 409
    site.broker.check_config = kept


def test_the_command(
    site: Site,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    file = tmp_path / "new.yaml"
    file.write_text("x: 1\n")
    words = ["admin", "config", "check", str(file)]
    site.checks["x: 1\n"] = ConfigCheck((MISTAKE, ConfigMistake("b\x1b")))
    assert run_command(words) == 2
    assert capsys.readouterr().err == (
        f"{file}:3:5: broker.max_qso: unknown key (did you mean 'max_qos'?)\n{file}: b\\x1b\n"
    )
    site.checks["x: 1\n"] = ConfigCheck(changes=ReloadReport((CHANGE,)))
    assert run_command(words) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["log.level", "info", "debug", "now"]
    site.checks["x: 1\n"] = ConfigCheck(changes=ReloadReport())
    assert run_command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert run_command(["admin", "config", "check"]) == 2
    assert run_command(["admin", "config", "check", str(tmp_path / "none")]) == 2
    assert run_command(["admin", "config"]) == 0
