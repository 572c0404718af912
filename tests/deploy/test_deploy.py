"""The files in deploy/ are valid and match the rest of the repository."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hookmq.cli import main
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
    assert "no client can connect" in report(config, hooks)
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


def test_the_image_runs_the_compiled_build() -> None:
    """The image runs the compiled build. Without a compiler, building the image fails. With a pure
    build, startup fails.
    """
    steps = instructions()
    [build] = [
        rest for name, rest in steps if name == "RUN" and "HATCH_BUILD_HOOKS_ENABLE=1" in rest
    ]
    assert "HOOKMQ_BUILD=compiled /opt/hookmq/bin/hookmq version" in build
    assert any(name == "RUN" and "gcc" in rest for name, rest in steps)
    last = [name for name, _ in steps].index("FROM", 1)
    assert any(name == "ENV" and "HOOKMQ_BUILD=compiled" in rest for name, rest in steps[last:])
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {"!core/compiling.py", "!core/hatch_build.py", "**/_compiled"} <= set(kept)


def test_compose_publishes_the_metrics() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["hookmq"]
    bound = {listener.bind for listener in image(service["environment"]).listeners}
    published = {port.rpartition(":")[2] for port in service["ports"]}
    assert bound == {f"*:{port}" for port in published}
    assert "9090" in published


def test_compose_monitors_the_broker() -> None:
    """Prometheus and Grafana in the compose file find their files, each other and the broker, and are
    reachable only from this machine.
    """
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source[0] == "." else source in compose["volumes"]
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    [job] = scrape["scrape_configs"]
    bound = image(services["hookmq"]["environment"]).listeners[2].bind
    assert job["static_configs"] == [{"targets": [bound.replace("*", "hookmq")]}]
    assert all((DEPLOY / "prometheus" / name).is_file() for name in scrape["rule_files"])
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )
    assert [one["url"] for one in source["datasources"]] == ["http://prometheus:9090"]
    [provider] = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/hookmq.yaml").read_text()
    )["providers"]
    boards = [file.name for file in (DEPLOY / "grafana").glob("*.json")]
    assert len(boards) == 3
    for name in boards:
        board = f"./grafana/{name}:{provider['options']['path']}/{name}:ro"
        assert board in services["grafana"]["volumes"]


def test_the_manual_explains_every_alert() -> None:
    rules = [
        rule["alert"]
        for name in (
            "alerts.yaml",
            "alerts-spark.yaml",
            "alerts-queues.yaml",
            "alerts-cluster.yaml",
        )
        for group in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]
        for rule in group["rules"]
    ]
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    listed = re.findall(r"^\| `(HookMQ\w+)` \|", page, re.MULTILINE)
    assert listed == rules


def test_the_broker_of_the_systemd_page_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that the systemd page installs keeps its state. The page uses the configuration of
    ``config init``, so pip must install storage as well.
    """
    page = (ROOT / "docs/how-to/systemd.md").read_text()
    [line] = re.findall(r"^.*pip install.*$", page, re.M)
    assert "hookmq-storage" in line
    assert "--find-links dist" in line
    assert page.index("make wheels compiled") < page.index(line)
    assert "config init /etc/hookmq/hookmq.yaml" in page
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    path = tmp_path / "hookmq.yaml"
    assert main(["config", "init", str(path)]) == 0
    config = load(path)
    said = report(config, validate(config, "asyncio"))
    assert f"store    plugin storage in {tmp_path}/storage (group" in said
    assert f"STATE_DIRECTORY=/var/lib/{state_directory()}" in page


def state_directory() -> str:
    return str(
        re.findall(r"^StateDirectory=(.+)$", (DEPLOY / "hookmq.service").read_text(), re.M)[0]
    )


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
