"""Test every member as a wheel built from its sdist, installed into an empty environment and run
there.
"""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from recording import V5, Client
from serving import serving
from workspace import ROOT, Member, members

# Run all tests in one process, so that the wheels and environments are made only once.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("wheels")]
ALL = [pytest.param(member, id=member.name) for member in members()]
PUBLISHED = [one for one in ALL if not str(one.id).startswith("hookmq-example-")]
ENVIRON = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL_ENV", "UV_", "HOOKMQ_"))
}
"""A user's environment, without references to this repository."""


def run(*words: str | Path, cwd: Path | None = None, **more: str) -> str:
    """Run a program and return its output. It must succeed."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=ENVIRON | more, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv() -> str:
    """Return the path of uv. It shares its cache between environments, while pip would unpack each wheel again."""
    found = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if found is None:
        pytest.skip("uv is not installed (make install)")
    return found


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdists of all members, and wheels from them."""
    folder = tmp_path_factory.mktemp("dist")
    run(uv(), "build", "--all-packages", "--quiet", "--out-dir", folder, cwd=ROOT)
    return folder


def environment(folder: Path, wheels: list[Path]) -> Path:
    """Create a virtual environment with wheels and their dependencies. Return the folder of its programs."""
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin/python"
    run(uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *wheels)
    return folder / "bin"


def pip(programs: Path, command: str) -> str:
    """Return the output of ``uv pip check`` or ``uv pip list`` for an environment."""
    return run(uv(), "pip", command, "--python", programs / "python")


@pytest.fixture(scope="session")
def core_alone(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the core's wheel and its dependencies. Return the folder of its programs."""
    [wheel] = dist.glob("hookmq-*.whl")
    return environment(tmp_path_factory.mktemp("core") / "venv", [wheel])


@pytest.fixture(scope="session")
def everything(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with every wheel. Return the folder of its programs."""
    return environment(tmp_path_factory.mktemp("all") / "venv", sorted(dist.glob("*.whl")))


def in_wheel(dist: Path, member: Member) -> tuple[zipfile.ZipFile, set[str]]:
    [wheel] = dist.glob(f"{member.stem}-*.whl")
    archive = zipfile.ZipFile(wheel)
    return archive, set(archive.namelist())


@pytest.mark.parametrize("member", ALL)
def test_the_wheel_holds_the_package_and_nothing_else(dist: Path, member: Member) -> None:
    archive, names = in_wheel(dist, member)
    with archive:
        package = member.folder / member.package
        files = {
            str(path.relative_to(member.folder))
            for path in package.rglob("*")
            if path.is_file()
            and not {"__pycache__", "_compiled"} & set(path.parts)
            and path.suffix not in (".so", ".pyc")
        }
        assert f"{member.package}/py.typed" in files
        assert {name for name in names if ".dist-info/" not in name} == files
        metadata = email.message_from_bytes(archive.read(f"{member.stem}.dist-info/METADATA"))
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata.get_payload(), "no README"
        needed = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
        assert len(needed) == len(member.project["dependencies"])


def test_the_core_carries_its_data(dist: Path) -> None:
    [core] = [member for member in members() if member.name == "hookmq"]
    archive, names = in_wheel(dist, core)
    archive.close()
    assert "hookmq/config/default.yaml" in names
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.parametrize("member", PUBLISHED)
def test_a_published_wheel_carries_its_licence(dist: Path, member: Member) -> None:
    archive, names = in_wheel(dist, member)
    with archive:
        assert f"{member.stem}.dist-info/licenses/LICENSE" in names


@pytest.mark.parametrize("member", ALL)
def test_the_sdist_holds_what_the_wheel_is_made_of(dist: Path, member: Member) -> None:
    with tarfile.open(dist / f"{member.stem}.tar.gz") as archive:
        names = {name.removeprefix(f"{member.stem}/") for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", f"{member.package}/py.typed"} <= names


def test_the_core_needs_nothing_undeclared(core_alone: Path, tmp_path: Path) -> None:
    program = (
        "import importlib, pkgutil, hookmq\n"
        "for module in pkgutil.walk_packages(hookmq.__path__, 'hookmq.', lambda name: None):\n"
        "    if not module.name.endswith('.__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "        print(module.name)\n"
    )
    imported = run(core_alone / "python", "-W", "error", "-c", program, cwd=tmp_path).split()
    assert "hookmq.server.websocket" in imported
    pip(core_alone, "check")
    assert "uvloop" not in pip(core_alone, "list")


def test_the_core_serves_without_uvloop(core_alone: Path, tmp_path: Path) -> None:
    bind = ("-o", "listeners[0].bind=127.0.0.1:0", "-o", "listeners[1].bind=127.0.0.1:0")
    command = [str(core_alone / "hookmq")]
    with serving(*bind, command=command, cwd=tmp_path) as broker:
        with Client(broker.ports["tcp"], version=V5) as client:
            client.subscribe("a/#", 1)
            client.publish("a/b", b"x", 1)
            assert client.message().payload == b"x"
        with Client(broker.ports["ws"], path="/mqtt") as client:
            client.subscribe("a/#", 1)
        [skipped] = [entry for entry in broker.log if entry["event"] == "plugin.skipped"]
        assert "uv pip install ./plugins/storage" in skipped["error"]
        assert "store.memory" in [entry["event"] for entry in broker.log]
    assert list(tmp_path.iterdir()) == []


def test_with_all_wheels_what_was_acknowledged_is_kept(everything: Path, tmp_path: Path) -> None:
    bind = ("-o", "listeners[0].bind=127.0.0.1:0", "-o", "listeners[1].bind=127.0.0.1:0")
    command = [str(everything / "hookmq")]
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "cwd").mkdir()
    for first in (True, False):
        with (
            serving(*bind, command=command, cwd=tmp_path / "cwd", environ=environ) as broker,
            Client(broker.ports["tcp"], version=V5) as client,
        ):
            if first:
                client.publish("kept", b"x", 1, retain=True)
            else:
                client.subscribe("kept", 1)
                assert client.message().payload == b"x"
    assert list((tmp_path / "cwd").iterdir()) == []
    assert (tmp_path / "state/hookmq/storage/hookmq.db").exists()


def test_the_command_line_of_the_wheels(everything: Path, tmp_path: Path) -> None:
    hookmq = everything / "hookmq"
    [core] = [member for member in members() if member.name == "hookmq"]
    assert run(hookmq, "version", cwd=tmp_path).split()[:2] == ["hookmq", core.project["version"]]
    listed = run(hookmq, "plugins", "--installed", cwd=tmp_path)
    for member in members():
        for name in member.project.get("entry-points", {}).get("hookmq.plugins", {}):
            assert name in listed
    assert "problem" not in listed
    (tmp_path / "hookmq.yaml").write_text(run(hookmq, "config", "init", cwd=tmp_path))
    assert ": valid" in run(hookmq, "check", "-c", "hookmq.yaml", cwd=tmp_path)


def test_the_client_of_queues_is_installed_without_the_broker(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("hookmq_queues_client-*.whl")
    programs = environment(tmp_path / "venv", [wheel])
    pip(programs, "check")
    listed = {line.split()[0] for line in pip(programs, "list").splitlines()[2:]}
    assert listed == {"hookmq-queues-client", "paho-mqtt"}
    assert "--queue NAME" in run(programs / "hookmq-worker", "--help", cwd=tmp_path)
    run(programs / "python", "-W", "error", "-c", "import hookmq_queues_client", cwd=tmp_path)


def test_the_receiver_of_webhooks_is_installed_alone(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("hookmq_webhook_receiver-*.whl")
    programs = environment(tmp_path / "venv", [wheel])
    pip(programs, "check")
    listed = {line.split()[0] for line in pip(programs, "list").splitlines()[2:]}
    assert listed == {"hookmq-webhook-receiver"}
    use = "from hookmq_webhook_receiver import Receiver, new_secret; Receiver(new_secret())"
    run(programs / "python", "-W", "error", "-c", use, cwd=tmp_path)


CONFIG = """\
version: 1
listeners: [{name: tcp, bind: "127.0.0.1:0"}]
auth: {default: deny}
authz: {default: deny}
plugins:
  - use: example_allow_list
    config:
      users:
        ada: {password: {$env: ADA_PASSWORD}, publish: ["a/#"], subscribe: ["a/#"]}
  - use: example_stamp
    config: {name: via, value: wheel}
"""


def test_plugins_from_their_wheels_by_their_entry_points(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "hookmq.yaml").write_text(CONFIG)
    with serving(
        "-c", "hookmq.yaml", command=[str(everything / "hookmq")], cwd=tmp_path,
        environ={"ADA_PASSWORD": "s3cret"},
    ) as broker:  # fmt: skip
        stranger = Client(broker.ports["tcp"], version=V5, username="ada", password="wrong")
        assert stranger.connect()[0] == 0x86
        stranger.paho.loop_stop()
        ada = Client(broker.ports["tcp"], version=V5, username="ada", password="s3cret")
        with ada:
            assert ada.subscribe("#", 1) == 0x87
            assert ada.subscribe("a/#", 1) == 1
            assert ada.publish("b", b"", 1) == 0x87
            assert ada.publish("a/b", b"x", 1, UserProperty=[("k", "v")]) == 0
            message = ada.message()
            assert message.payload == b"x"
            stamped = message.properties
            assert stamped is not None
            assert stamped.UserProperty == [("k", "v"), ("via", "wheel")]  # type: ignore[attr-defined]


ACCESS = {
    "acl_file": ("acl", "{path: acl.yaml}"),
    "auth_http": ("auth-http", "{authenticate: {url: 'http://127.0.0.1:1/'}}"),
    "auth_jwt": ("jwt", "{secret: 0123456789abcdef0123456789abcdef}"),
    "auth_password": ("passwd", "{path: users.yaml}"),
    "ratelimit": ("ratelimit", "{limits: [{rate: 5/s}]}"),
}
"""The access plugins, each with its command and a configuration."""


def _files(folder: Path, *names: str) -> None:
    (folder / "acl.yaml").write_text("rules:\n  - {deny: all, topic: '#'}\n")
    (folder / "users.yaml").write_text("version: 1\nusers:\n  door: {hash: null}\n")
    entries = ", ".join(f"{{use: {name}, config: {ACCESS[name][1]}}}" for name in names)
    head = 'version: 1\nlisteners: [{name: tcp, bind: "127.0.0.1:0"}]\n'
    (folder / "hookmq.yaml").write_text(f"{head}plugins: [{entries}]\n")


@pytest.mark.parametrize("name", ACCESS)
def test_a_plugin_that_decides_is_installed_alone(dist: Path, tmp_path: Path, name: str) -> None:
    stems = ("hookmq", f"hookmq_{name}", "hookmq_toolkit")
    wheels = [wheel for stem in stems for wheel in dist.glob(f"{stem}-*.whl")]
    assert len(wheels) == 3
    programs = environment(tmp_path / "venv", wheels)
    pip(programs, "check")
    hookmq = programs / "hookmq"
    listed = run(hookmq, "plugins", "list", "--installed", cwd=tmp_path)
    assert name in listed
    assert "problem" not in listed
    assert not any(other in listed for other in ACCESS if other != name)
    _files(tmp_path, name)
    run(hookmq, "check", "-c", "hookmq.yaml", cwd=tmp_path)
    assert "exit codes" in run(hookmq, ACCESS[name][0], "--help", cwd=tmp_path)


def test_the_plugins_that_decide_are_installed_together(everything: Path, tmp_path: Path) -> None:
    hookmq = everything / "hookmq"
    pip(everything, "check")
    listed = run(hookmq, "plugins", "list", "--installed", cwd=tmp_path)
    assert all(name in listed for name in ACCESS)
    _files(tmp_path, *ACCESS)
    run(hookmq, "check", "-c", "hookmq.yaml", cwd=tmp_path)
    for command, _ in ACCESS.values():
        assert "exit codes" in run(hookmq, command, "--help", cwd=tmp_path)
    _files(tmp_path, *(name for name in ACCESS if name != "auth_http"))  # there is no service
    with serving("-c", "hookmq.yaml", command=[str(hookmq)], cwd=tmp_path) as broker:
        stranger = Client(broker.ports["tcp"], version=V5, username="ada", password="wrong")
        assert stranger.connect()[0] == 0x86
        stranger.paho.loop_stop()
