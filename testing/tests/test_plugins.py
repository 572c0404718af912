"""Test that `make_plugin` binds and validates a configuration as `hookmq serve` does for an entry of ``plugins:``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hookmq.config.model import loads
from hookmq.config.plugins import build
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.hooks.instance import HookOptions
from hookmq.plugin import (
    ConfigError,
    Context,
    Plugin,
    PluginError,
    Seconds,
    Size,
    hookimpl,
    setting,
)
from hookmq_testing import make_plugin
from hookmq_testing.contracts import PluginContract


@dataclass(frozen=True)
class Inner:
    size: Size = 1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    path: Path
    inner: Inner = Inner()
    others: dict[str, Inner] = field(default_factory=dict)
    wait: Seconds = 1.0
    count: int = setting(1, "how many", minimum=1)

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ConfigError("13 brings bad luck")


class Bound(Plugin):
    """A plugin whose configuration has every kind of field."""

    Config = Config

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        if config.count == 7:
            raise ConfigError("7 is taken")
        if config.count == 8:
            raise RuntimeError("8 is broken")

    @hookimpl
    def on_publish(self) -> None: ...


class Pydantic:
    """A configuration class that validates itself."""

    def __init__(self, word: str) -> None:
        self.word = word

    @classmethod
    def model_validate(cls, value: Any) -> "Pydantic":
        if not isinstance(value.get("word"), str):
            raise ValueError("word is wanted")
        return cls(value["word"])

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {}


class Validated(Plugin):
    Config = Pydantic


class Bare(Plugin):
    """A plugin without a configuration."""


class Later(Plugin):
    requires_api = ">=99"


def served(kind: type[Plugin], written: Any) -> Any:
    """Return the plugin's configuration as `hookmq serve` binds it. Raise ConfigError or PluginError."""
    document = {
        "version": 1,
        "listeners": [],
        "plugins": [{"use": "it", "config": written}],
    }
    text = yaml.safe_dump(document).replace("listeners: []", "listeners: [{name: a}]")
    point: Any = type("Point", (), {"load": lambda self: kind})()
    offered = InstalledEntry("it", "m:it", "hookmq-it", "1", point)
    return build(loads(text, "f", (), {}), (offered,))[0].plugin.config


GOOD: list[dict[str, Any]] = [
    {"path": "a"},
    {"path": "a", "inner": {"size": "64KiB", "names": ["x", "y"]}},
    {"path": "a", "others": {"one": {"size": 5}}, "wait": "250ms", "count": 3},
]
BAD: list[tuple[type[Plugin], Any]] = [
    (Bound, {}),
    (Bound, {"path": 5}),
    (Bound, {"path": "a", "wrod": 1}),
    (Bound, {"path": "a", "inner": {"size": "64 apples"}}),
    (Bound, {"path": "a", "inner": {"nmaes": []}}),
    (Bound, {"path": "a", "others": {"one": 5}}),
    (Bound, {"path": "a", "count": 0}),
    (Bound, {"path": "a", "count": "1"}),
    (Bound, {"path": "a", "count": 13}),
    (Bound, {"path": "a", "count": 7}),
    (Bound, {"path": "a", "count": 8}),
    (Validated, {}),
    (Validated, {"word": 5}),
    (Bare, {"word": 5}),
    (Later, {}),
]


@pytest.mark.parametrize("written", GOOD)
def test_make_plugin_binds_settings_as_serve_does(written: dict[str, Any]) -> None:
    assert make_plugin(Bound, written, "it").plugin.config == served(Bound, written)


@pytest.mark.parametrize(("kind", "written"), BAD)
def test_make_plugin_refuses_settings_as_serve_does(
    kind: type[Plugin], written: dict[str, Any]
) -> None:
    with pytest.raises((ConfigError, PluginError)) as expected:
        served(kind, written)
    with pytest.raises((ConfigError, PluginError)) as caught:
        make_plugin(kind, written, "it")
    assert type(caught.value) is type(expected.value)
    # a test has no configuration file with a line number, and no distribution
    words = str(expected.value).partition(": ")[2] if "f:" in str(expected.value) else None
    if words is not None:
        assert words in str(caught.value)


def test_make_plugin_accepts_python_values() -> None:
    made = make_plugin(Bound, {"path": Path("a"), "inner": {"names": ("x",)}})
    assert (made.plugin.config.path, made.plugin.config.inner.names) == (Path("a"), ("x",))
    config = Config(Path("b"))
    assert make_plugin(Bound, config).plugin.config is config
    made = make_plugin(Bound, {"path": "a", "inner": Inner(5, ("x",))})
    assert made.plugin.config.inner == Inner(5, ("x",))
    with pytest.raises(ConfigError, match=r"config\.inner\.size: expected a size"):
        make_plugin(Bound, {"path": "a", "inner": Inner("much")})  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="expected a whole number, found an object of type object"
    ):
        make_plugin(Bound, {"path": "a", "count": object()})


def test_the_entry_is_the_one_that_was_asked_for() -> None:
    made = make_plugin(Bound, {"path": "a"}, "mine", use="bound", required=False, filters=("a/#",))
    assert (made.id, made.entry.use, made.entry.required) == ("mine", "bound", False)
    assert (made.entry.filters, made.plugin.context.use) == (("a/#",), "bound")
    with pytest.raises(PluginError, match="8 is broken"):
        make_plugin(Bound, {"path": "a", "count": 8}, required=False)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"filters": ("a/#/b",)}, "filters"),
        ({"filters": ("$share/x/a",)}, "filters"),
        ({"filters": ()}, "filters"),
        ({"filters": "a"}, "filters"),
        ({"hooks": {"on_nothing": {}}}, "there is no such hook"),
        ({"hooks": {"on_publish": {"timeout": "soon"}}}, "expected a duration"),
        ({"hooks": {"on_publish": {"queue": 0}}}, "queue"),
        ({"listeners": ()}, "listeners"),
        ({"id": "two words"}, "may contain only letters"),
        ({"fliters": ("a",)}, "did you mean 'filters'"),
    ],
)
def test_an_entry_that_serve_refuses_is_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plugin(Bound, {"path": "a"}, **entry)
    assert words in str(caught.value)


def test_the_options_of_an_entry_are_bound() -> None:
    options = {"on_publish": {"timeout": "250ms", "filters": ["b"]}}
    made = make_plugin(Bound, {"path": "a"}, hooks=options, listeners=("inside",))
    assert made.entry.options("on_publish") == HookOptions(timeout=0.25, filters=("b",))
    assert made.entry.listeners == ("inside",)
    given = {"on_publish": HookOptions(timeout=2.0)}
    assert make_plugin(Bound, {"path": "a"}, hooks=given).timeout("on_publish") == 2.0


class TestContract(PluginContract):
    """The contract binds the configuration as well."""

    kind = Bound
    configs = tuple(GOOD)
    bad_configs = tuple(written for kind, written in BAD if kind is Bound)

    def test_sizes_are_numbers(self) -> None:
        assert self.instance(GOOD[1]).plugin.config.inner == Inner(65536, ("x", "y"))
