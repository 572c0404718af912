"""Test that the Home Assistant package has valid keys, and that its script writes a configuration with which clients
can log in.
"""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trustme
import yaml
from hookmq.cli.check import validate
from hookmq.config.model import load
from serving import serving
from workspace import ROOT

ADDON = ROOT / "deploy/home-assistant/hookmq"
PAGE = ROOT / "docs/how-to/home-assistant.md"
KEYS = {
    "name": str, "version": str, "slug": str, "description": str, "arch": list, "stage": str, "startup": str,
    "boot": str, "init": bool, "timeout": int, "backup": str, "ports": dict, "ports_description": dict,
    "watchdog": str, "map": list, "options": dict, "schema": dict,
}  # fmt: skip
"""The documented keys that the package uses, and their types."""
VALUES = {
    "arch": {"aarch64", "amd64"},
    "stage": {"stable", "experimental", "deprecated"},
    "startup": {"initialize", "system", "services", "application", "once"},
    "boot": {"auto", "manual", "manual_only"},
    "backup": {"hot", "cold"},
}
MAPPED = {
    "data", "config", "ssl", "addons", "backup", "share", "media", "homeassistant_config", "all_addon_configs",
    "addon_config",
}  # fmt: skip
ELEMENT = re.compile(r"(str|password|bool|int|float|email|url|port)\??")


@pytest.fixture(scope="module")
def addon() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ADDON / "config.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("addon_run", ADDON / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_keys_are_those_of_home_assistant(addon: dict[str, Any]) -> None:
    assert {name: type(value) for name, value in addon.items()} == KEYS
    for name, allowed in VALUES.items():
        value = addon[name]
        assert set(value if isinstance(value, list) else [value]) <= allowed
    assert re.fullmatch(r"[-_.A-Za-z0-9]+", addon["slug"])
    assert 10 <= addon["timeout"] <= 300
    assert all(re.fullmatch(r"\d+/tcp", port) for port in addon["ports"])
    assert addon["ports"].keys() == addon["ports_description"].keys()
    assert re.fullmatch(r"tcp://\[HOST\]:\[PORT:1883\]", addon["watchdog"])
    for one in addon["map"]:
        assert one["type"] in MAPPED
        assert one.keys() <= {"type", "read_only", "path"}


def test_each_option_has_a_type(addon: dict[str, Any]) -> None:
    assert addon["options"].keys() == addon["schema"].keys()
    for value in addon["schema"].values():
        [element] = value if isinstance(value, list) else [value]
        for one in element.values() if isinstance(element, dict) else [element]:
            assert ELEMENT.fullmatch(one)
    shown = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)[0])
    assert shown.keys() == addon["schema"].keys()


def test_the_ports_are_those_of_the_listeners(
    addon: dict[str, Any], run: ModuleType, tmp_path: Path
) -> None:
    options = {"certfile": "c.pem", "keyfile": "k.pem"}
    written = run.configuration(options, tmp_path, tmp_path, tmp_path)
    bound = {one["bind"].rpartition(":")[2] for one in written["listeners"]}
    assert bound == {port.partition("/")[0] for port in addon["ports"]}


def test_the_image_copies_what_there_is() -> None:
    text = (ADDON / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+)", text, re.M)
    assert copied == ["wheels", "run.py"]  # wheels is copied by hand, as the page says
    plugins = set(re.findall(r"hookmq-([a-z-]+)", text))
    assert all((ROOT / "plugins" / name.replace("-", "_")).is_dir() for name in plugins)
    page = PAGE.read_text()
    assert all(f"hookmq_{name.replace('-', '_')}-*.whl" in page for name in plugins)


@pytest.mark.slow
def test_a_client_can_log_in(run: ModuleType, tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    made.private_key_pem.write_to_path(tmp_path / "k.pem")
    options = {
        "logins": [{"username": "ann", "password": "correct horse"}],
        "certfile": "c.pem", "keyfile": "k.pem", "rules": "",
    }  # fmt: skip
    (tmp_path / "options.json").write_text(json.dumps(options))
    path = run.prepare(tmp_path, tmp_path, tmp_path)
    config = load(path)
    validate(config, "asyncio")
    assert (config.auth.default, config.authz.default) == ("deny", "allow")
    assert "correct horse" not in (tmp_path / "users.yaml").read_text()
    assert (tmp_path / "users.yaml").stat().st_mode & 0o777 == 0o600
    assert len(config.listeners) == 3
    text = path.read_text()
    for port in ("1883", "8083", "8883"):
        text = text.replace(f"*:{port}", "127.0.0.1:0")
    path.write_text(text)
    with serving("-c", str(path)) as served:
        words = [
            *run.HOOKMQ,
            "pub",
            "-p",
            str(served.ports["tcp"]),
            "-t",
            "a",
            "-m",
            "1",
            "-q",
            "1",
        ]
        for password, code in (("correct horse", 0), ("wrong", 1)):
            done = subprocess.run(
                [*words, "-u", "ann", "-P", password], capture_output=True, text=True, timeout=60, check=False
            )  # fmt: skip
            assert min(done.returncode, 1) == code, done.stderr


@pytest.mark.parametrize("options", [{"certfile": "c.pem"}, {"keyfile": "k.pem"}])
def test_a_certificate_needs_its_key(
    run: ModuleType, tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="set both or none"):
        run.configuration(options, tmp_path, tmp_path, tmp_path)


def test_with_rules_nothing_else_is_allowed(run: ModuleType, tmp_path: Path) -> None:
    written = run.configuration({"rules": "acl.yaml"}, tmp_path, tmp_path, tmp_path / "config")
    assert written["authz"] == {"default": "deny"}
    assert written["plugins"][-1]["config"] == {"path": str(tmp_path / "config/acl.yaml")}
