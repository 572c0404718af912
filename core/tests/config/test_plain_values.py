"""Test that values in a request are checked like those in a configuration file, but cannot read files or environment
variables.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError, Seconds, Size, setting


@dataclass(frozen=True)
class Inner:
    name: str
    wait: Seconds = setting(1.0, "", minimum=0.5)


@dataclass(frozen=True)
class Outer:
    size: Size = 1
    inner: tuple[Inner, ...] = ()
    any: Any = None


def test_values_become_settings() -> None:
    found = bind_values(
        Outer, {"size": "64KiB", "inner": [{"name": "a", "wait": "2s"}], "any": {"a": [1]}}
    )
    assert found == Outer(65536, (Inner("a", 2.0),), {"a": [1]})


def test_every_mistake_is_named_with_its_key() -> None:
    values = {"size": True, "inner": [{"wait": "1ms"}], "other": 1}
    with pytest.raises(ConfigError) as raised:
        bind_values(Outer, values)
    text = str(raised.value)
    for part in (
        "size: expected",
        "inner[0].name: this key is missing",
        "inner[0].wait",
        "other: unknown key",
    ):
        assert part in text


@pytest.mark.parametrize(
    "values", [{"$file": "/etc/passwd"}, {"any": [{"$env": "HOME"}]}, {"size": {"$env": "X"}}]
)
def test_files_and_variables_are_refused(values: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"\$env and \$file are only allowed in the configuration"
    ):
        bind_values(Outer, values)


def test_deep_values_are_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ConfigError, match="more than 16 levels deep"):
        bind_values(Outer, {"any": deep})
