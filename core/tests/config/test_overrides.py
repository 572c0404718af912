"""Test configuration values that come from the environment or the command line."""

import pytest
from hookmq.config.model import loads
from hookmq.config.overrides import from_environ
from hookmq.model.errors import ConfigError

SMALL = "version: 1\nlisteners: [{name: tcp}]\n"


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
        ("broker..x=1", "option -o broker..x: no key given"),
        ("listeners.7.bind=x",
         "option -o listeners.7.bind: there is no listeners.7 (listeners has 1 entries, from 0)"),
        ("listeners.tcp.bind=x",
         "option -o listeners.tcp.bind: there is no listeners.tcp (listeners has 1 entries, from 0)"),
        ("version.x=1", "option -o version.x: version is a single value and has no 'x'"),
        (".".join("a" * 40) + "=1", f"option -o {'.'.join('a' * 40)}: more than 32 keys"),
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
