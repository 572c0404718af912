"""Test backups of a store on disk, through the API and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from admin_site import DOCUMENT, Site, storage, validate
from hookmq_testing import run_command


def test_backups_need_a_folder_and_a_store(site: Site, tmp_path: Path) -> None:
    assert site.ask("GET", "/backup").status == 409
    answer = site.ask("POST", "/backup")
    assert (answer.status, answer.json["detail"]) == (
        409, "the setting backup_folder of the plugin is empty",
    )  # fmt: skip
    other = Site(tmp_path, backup_folder=str(tmp_path / "backups"))
    answer = other.ask("POST", "/backup")
    assert (answer.status, "plugin storage" in answer.json["detail"]) == (409, True)
    other.close()


def test_a_store_is_copied_to_the_configured_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = tmp_path / "data", tmp_path / "backups"
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path, (storage(data),), backup_folder=folder.name, max_backups=1)
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    monkeypatch.setattr("hookmq_admin.backup_cli.INTERVAL", 0.0)
    try:
        assert site.ask("POST", "/backup", "operator").status == 403
        none = site.ask("GET", "/backup").json
        validate(none, DOCUMENT["components"]["schemas"]["Backup"])
        assert (none["state"], none["target"]) == ("none", None)
        publisher = site.client("publisher")
        site.run(publisher.publish("kept/1", b"on", 1, True, expect=None))
        assert run_command(["admin", "backup", "--json"]) == 0
        found: Any = json.loads(capsys.readouterr().out)
        validate(found, DOCUMENT["components"]["schemas"]["Backup"])
        assert (found["state"], found["progress"], found["error"]) == ("done", 1, "")
        (made,) = folder.iterdir()
        assert found["target"] == str(made)
        assert found["bytes"] == (made / "hookmq.db").stat().st_size
        assert run_command(["storage", "info", str(made), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["retained"] == 1
        assert run_command(["admin", "backup", "--status"]) == 0
        assert "state       done\n" in capsys.readouterr().out
        assert run_command(["admin", "backup"]) == 1
        assert "contains 1 backups, which is the limit" in capsys.readouterr().err
        actions = [(one["action"], one["status"]) for one in site.audit()[:3]]
        assert actions == [("startBackup", 409), ("startBackup", 200), ("startBackup", 403)]
        made.rename(tmp_path / "moved")
        folder.rmdir()
        folder.write_text("not a folder")
        assert "backup_folder: Not a directory" in site.ask("POST", "/backup").json["detail"]
    finally:
        site.close()


def test_backups_in_the_same_second_have_different_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    site = Site(tmp_path, (storage(tmp_path / "data"),), backup_folder=str(folder))
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    monkeypatch.setattr("hookmq_admin.backup_cli.INTERVAL", 0.0)
    monkeypatch.setattr("hookmq_admin.backups.time.strftime", lambda *given: "20261123-092221")
    try:
        for _ in range(3):
            assert run_command(["admin", "backup"]) == 0, capsys.readouterr()
    finally:
        site.close()
    first = "hookmq-20261123-092221"
    assert sorted(one.name for one in folder.iterdir()) == [first, f"{first}-2", f"{first}-3"]
