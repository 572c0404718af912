"""Reading a configuration: files, the default, overrides and their order."""

import os
import pathlib

import pytest
from hookmq.config.model import DEFAULT_SOURCE, default_config, default_text, load, loads
from hookmq.config.overrides import from_environ
from hookmq.errors import ConfigError
from hookmq.settings import Settings

SMALL = "version: 1\nlisteners: [{name: tcp}]\n"


def test_the_default_is_this_machine_only_and_open_to_it() -> None:
    config = default_config(environ={})
    assert [(one.name, one.type, one.bind) for one in config.listeners] == [
        ("tcp", "tcp", "127.0.0.1:1883"),
        ("ws", "ws", "127.0.0.1:8083"),
    ]
    assert config.listeners[1].websocket.path == "/mqtt"
    assert (config.auth.default, config.authz.default) == ("allow", "allow")
    assert config.source == DEFAULT_SOURCE
    [storage] = config.plugins
    assert (storage.use, storage.enabled, storage.required) == ("storage", True, "if_installed")
    assert storage.config == {"durability": "group"}


def test_what_the_default_file_spells_out_are_the_defaults() -> None:
    config = default_config(environ={})
    plain = loads(SMALL, environ={})
    assert (config.broker, config.session, config.log) == (plain.broker, plain.session, plain.log)
    assert plain.settings == Settings()


def test_the_examples_in_the_default_file_are_right() -> None:
    lines = default_text().splitlines()
    start = lines.index("plugins:")
    end = next(i for i in range(start, len(lines)) if not lines[i])
    lines[start:end] = [
        line.replace("#", " ", 1) if line.startswith("# ") else line for line in lines[start:end]
    ]
    text = "\n".join(lines).replace("{$file: /run/secrets/hook}", "x")
    config = loads(text, environ={"AUDIT_URL": "http://x"})
    assert [entry.id for entry in config.plugins] == ["storage", "auth_file", "audit"]
    assert config.plugins[2].config["url"] == "http://x"
    assert config.plugins[2].options("on_published").queue == 5000


def test_a_file_is_read_with_its_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "reference").write_text("other.example\n")
    path = tmp_path / "hookmq.yaml"
    path.write_text(SMALL + "broker: {server_reference: {$file: reference}}\n")
    config = load(path, environ={})
    assert config.broker.server_reference == "other.example"
    assert config.source == str(path)


def test_a_missing_file_says_how_to_get_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file or directory \(`hookmq config init`"):
        load(tmp_path / "none.yaml")


def test_the_environment_overrides_the_file_and_options_override_both() -> None:
    text = SMALL + "broker: {max_qos: 2, max_filters: 5}\n"
    environ = {
        "HOOKMQ__BROKER__MAX_QOS": "1",
        "HOOKMQ__SESSION__MAX_EXPIRY": "1h",
        "HOOKMQ_DEBUG": "1",
    }
    config = loads(text, options=["broker.max_qos=0"], environ=environ)
    assert (config.broker.max_qos, config.broker.max_filters) == (0, 5)
    assert config.session.max_expiry == 3600


@pytest.mark.parametrize("key", ["listeners[0].bind", "listeners.0.bind"])
def test_list_positions_are_numbers(key: str) -> None:
    config = loads(SMALL, options=[f"{key}=127.0.0.1:99"], environ={})
    assert config.listeners[0].bind == "127.0.0.1:99"
    config = loads(SMALL, environ={"HOOKMQ__LISTENERS__0__BIND": "127.0.0.1:98"})
    assert config.listeners[0].bind == "127.0.0.1:98"


def test_an_override_can_add_an_entry() -> None:
    options = [
        "plugins.0.use=a",
        "plugins.0.config.Key=1",
        "listeners.1.name=b",
        "listeners.1.bind=:7",
    ]
    config = loads(SMALL, options=options, environ={"HOOKMQ__PLUGINS__0__CONFIG__KEY": "2"})
    assert [one.name for one in config.listeners] == ["tcp", "b"]
    assert (config.plugins[0].use, config.plugins[0].config) == ("a", {"Key": 1, "key": 2})


def test_the_environment_finds_keys_whatever_their_case() -> None:
    text = SMALL + "plugins: [{use: a, config: {maxSize: 1}}]\n"
    config = loads(text, environ={"HOOKMQ__PLUGINS__0__CONFIG__MAXSIZE": "2"})
    assert config.plugins[0].config == {"maxSize": 2}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("broker.max_qos=7", "option -o broker.max_qos: broker.max_qos: expected at most 2, found 7"),
        ("broker.max_qs=1",
         "option -o broker.max_qs: broker.max_qs: unknown key (did you mean 'max_qos'?)"),
        ("broker.max_qos", "option -o broker.max_qos: expected KEY=VALUE"),
        ("=1", "option -o =1: expected KEY=VALUE"),
        ("broker..x=1", "option -o broker..x: names no key"),
        ("listeners.7.bind=x",
         "option -o listeners.7.bind: there is no listeners.7 (listeners has 1 entries, counted from 0)"),
        ("listeners.tcp.bind=x",
         "option -o listeners.tcp.bind: there is no listeners.tcp (listeners has 1 entries, counted from 0)"),
        ("version.x=1", "option -o version.x: version is one value and holds no 'x'"),
        (".".join("a" * 40) + "=1", f"option -o {'.'.join('a' * 40)}: names too many keys"),
    ],
)  # fmt: skip
def test_a_wrong_override_names_its_own_source(option: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(SMALL, "f", [option], {})
    assert str(caught.value) == expected


def test_a_wrong_variable_names_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(SMALL, "f", (), {"HOOKMQ__BROKER__MAX_QOS": "lots"})
    assert str(caught.value) == (
        "environment HOOKMQ__BROKER__MAX_QOS: broker.max_qos: expected a whole number, found the text 'lots'"
    )


def test_variables_come_in_order_of_their_names() -> None:
    found = from_environ({"HOOKMQ__B": "2", "HOOKMQ__A__C": "1", "OTHER": "x"})
    assert [(one.path, one.text) for one in found] == [(("a", "c"), "1"), (("b",), "2")]


def test_an_indirection_is_checked_as_if_it_stood_there() -> None:
    text = "version: 1\nlisteners: [{name: a}, {name: {$env: N}, bind: {$env: B}}]\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", (), {"N": "a", "B": "127.0.0.1:1883"})
    assert "a second listener is called 'a'" in str(caught.value)
    assert "is already another listener's" in str(caught.value)


def test_port_0_never_clashes() -> None:
    text = "version: 1\nlisteners: [{name: a, bind: ':0'}, {name: b, bind: ':0'}]\n"
    assert len(loads(text, environ={}).listeners) == 2


def test_an_error_can_be_placed_later() -> None:
    config = loads(SMALL, "f", environ={})
    assert str(config.error_at(("listeners", 0, "tls"), "no")) == "f:2:13: listeners[0].tls: no"


def test_a_pipe_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "secret")
    text = "version: 1\nlisteners: [{name: tcp}]\nbroker: {server_reference: {$file: secret}}\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, "f", (), {}, tmp_path)
    assert f"the file '{tmp_path}/secret': not a regular file" in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "a pipe"])
def test_a_file_that_cannot_be_read_is_named_in_full(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "a pipe":
        os.mkfifo("hookmq.yaml")
    with pytest.raises(ConfigError) as caught:
        load("hookmq.yaml")
    why = "no such file or directory" if kind == "missing" else "not a regular file"
    assert str(caught.value).startswith(f"{tmp_path}/hookmq.yaml: {why}")


def test_paths_are_relative_to_the_file_that_holds_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of `$file` are; what the command line says is relative to the working folder."""
    text = """version: 1
listeners:
  - {name: a, type: tls, bind: '*:8883', tls: {certificate: server.pem, key: /etc/server.key}}
"""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "hookmq.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in ("etc/hookmq.yaml", str(folder / "hookmq.yaml")):
        tls = load(path, (), {}).listeners[0].tls
        assert tls is not None
        assert os.path.abspath(tls.certificate) == str(folder / "server.pem")
        assert (tls.key, tls.crl) == ("/etc/server.key", "")
    tls = load(path, ["listeners.0.tls.certificate=other.pem"], {}).listeners[0].tls
    assert tls is not None
    assert os.path.abspath(tls.certificate) == str(tmp_path / "other.pem")
