"""The files in deploy/ are of their kind, and agree with the rest of the repository."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hookmq.cli.check import report, validate
from hookmq.config.model import Config, load
from workspace import ROOT

DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {
    "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def image(environ: dict[str, str]) -> Config:
    return load(DEPLOY / "hookmq.yaml", environ=environ)


def test_the_configuration_of_the_image_lets_nobody_in() -> None:
    config = image({})
    hooks = validate(config, "asyncio")
    assert "nobody can connect" in report(config, hooks)
    assert "plugin storage in /var/lib/hookmq/storage (group" in report(config, hooks)
    assert {listener.name for listener in config.listeners} == {"tcp", "ws", "health"}


def test_compose_opens_it_for_this_machine_alone() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["hookmq"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert image(service["environment"]).auth.default == "allow"
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        assert (
            (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        )


def test_the_image_is_made_of_what_there_is() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= INSTRUCTIONS
    assert [name for name, _ in steps].count("FROM") == 2
    assert steps[[name for name, _ in steps].index("USER")] == ("USER", "hookmq")
    for name, rest in steps:
        if name == "COPY" and not rest.startswith("--from"):
            assert (ROOT / rest.split()[0]).exists()
    exposed = {port for name, rest in steps if name == "EXPOSE" for port in rest.split()}
    bound = {
        listener.bind.rpartition(":")[2]
        for listener in image({}).listeners
        if listener.name != "health"
    }
    assert exposed == bound
    [check] = [rest for name, rest in steps if name == "HEALTHCHECK"]
    [health] = [listener for listener in image({}).listeners if listener.name == "health"]
    assert f"http://{health.bind}/readyz" in check


def test_the_image_gets_what_it_is_built_from() -> None:
    kept = [
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line[0] == "!"
    ]
    assert {
        "pyproject.toml",
        "uv.lock",
        "core/hookmq",
        "core/pyproject.toml",
        "core/LICENSE",
    } <= set(kept)
    for name in kept:
        assert (ROOT / name).exists() or name == "plugins"


def test_the_unit_is_right(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "hookmq.service"
    text = (DEPLOY / "hookmq.service").read_text()
    unit.write_text(text.replace("/opt/hookmq/bin/hookmq", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "hookmq.service" in line]
    assert not complaints


def test_the_unit_names_what_the_broker_knows() -> None:
    text = (DEPLOY / "hookmq.service").read_text()
    for signal in re.findall(r"kill -(\w+)", text):
        assert signal == "HUP"
    assert "Type=notify\n" in text
    stop = int(re.findall(r"TimeoutStopSec=(\d+)", text)[0])
    assert stop > image({}).broker.shutdown_timeout
