"""Test that the JSON Schema agrees with the binder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from hookmq.config.binding import bound_fields
from hookmq.config.model import Config, default_text
from hookmq.config.schema import of_plugin, schema
from hookmq.config.units import Rate
from hookmq.model.settings import BrokerSettings, Seconds
from hookmq.plugin import Plugin


@dataclass(frozen=True)
class Inner:
    level: int = 1


@dataclass(frozen=True)
class Settings:
    url: str
    rate: Rate = Rate(5, 1)
    wait: Seconds = 1.0
    inner: tuple[Inner, ...] = ()


class Configured(Plugin):
    Config = Settings


class Bare(Plugin):
    pass


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from walk(child)
    elif isinstance(value, list):
        for child in value:
            yield from walk(child)


def test_every_reference_leads_somewhere() -> None:
    for root in (schema({"bare": Bare}), of_plugin("configured", Configured)):
        references = {item["$ref"] for item in walk(root) if isinstance(item.get("$ref"), str)}
        assert references
        for reference in references:
            assert reference.removeprefix("#/$defs/") in root["$defs"]


def test_every_key_of_every_section_is_there() -> None:
    root = schema()
    assert list(root["properties"]) == [field.name for field, _ in bound_fields(Config)]
    assert root["required"] == ["version", "listeners"]
    broker = root["$defs"]["BrokerSettings"]
    assert list(broker["properties"]) == [field.name for field, _ in bound_fields(BrokerSettings)]
    assert broker["additionalProperties"] is False
    qos = broker["properties"]["max_qos"]
    assert qos["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 2}
    assert qos["default"] == 2
    assert qos["description"].startswith("highest QoS offered")


def test_plugins_bring_their_own_schema() -> None:
    root = schema({"configured": Configured, "bare": Bare})
    entry = root["$defs"]["PluginEntry"]
    assert [rule["if"]["properties"]["use"]["const"] for rule in entry["allOf"]] == [
        "bare",
        "configured",
    ]
    own = root["$defs"]["plugin_configured"]
    assert (own["required"], own["$id"]) == (["url"], "hookmq:plugin:configured")
    assert own["properties"]["rate"]["anyOf"][0] == {"$ref": "#/$defs/rate"}
    assert root["$defs"]["plugin_bare"]["maxProperties"] == 0
    assert "authorize" in entry["properties"]["hooks"]["propertyNames"]["enum"]


def test_a_model_brings_its_schema_as_it_is() -> None:
    class Model:
        @classmethod
        def model_validate(cls, values: Mapping[str, Any]) -> "Model":
            return cls()

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {
                "type": "object",
                "properties": {"x": {"$ref": "#/$defs/X"}},
                "$defs": {"X": {}},
            }

    class Modelled(Plugin):
        Config = Model

    # `$id` makes the schema a resource of its own, and the reference is relative to it
    assert of_plugin("m", Modelled) == {"$id": "hookmq:plugin:m", **Model.model_json_schema()}


def test_the_default_configuration_is_valid() -> None:
    jsonschema = pytest.importorskip(
        "jsonschema", reason="not a dependency; structure is tested above"
    )
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(default_text()))


def accepts(rule: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Return whether `value` is valid. Supports only the parts of JSON Schema that our schema uses."""
    if "$ref" in rule:
        return accepts(root["$defs"][rule["$ref"].removeprefix("#/$defs/")], value, root)
    if "anyOf" in rule:
        return any(accepts(arm, value, root) for arm in rule["anyOf"])
    if "enum" in rule:
        return value in rule["enum"]
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
        "null": type(None),
    }  # fmt: skip
    kind = rule.get("type")
    if kind and not isinstance(value, kinds[kind]):
        return False
    if isinstance(value, dict):
        properties = rule.get("properties", {})
        return set(rule.get("required", ())) <= set(value) and all(
            accepts(properties[key], child, root) if key in properties
            else rule.get("additionalProperties", True) is not False
            for key, child in value.items()
        )  # fmt: skip
    if isinstance(value, list):
        return all(accepts(rule.get("items", {}), child, root) for child in value)
    if isinstance(value, int | float):
        return bool(rule.get("minimum", value) <= value <= rule.get("maximum", value))
    return True


def test_the_default_fits_and_mistakes_do_not() -> None:
    root = schema()
    value = yaml.safe_load(default_text())
    assert accepts(root, value, root)
    value["plugins"] = [{"use": "x", "config": {"url": {"$env": "U"}}}]
    value["broker"]["max_qos"] = {"$env": "QOS", "default": 1}
    assert accepts(root, value, root)
    mistakes: list[dict[str, Any]] = [
        {"max_qos": 3},
        {"max_qs": 1},
        {"max_qos": {"$env": 1}},
        {"hold_timeout": []},
    ]
    for wrong in mistakes:
        assert not accepts(root, value | {"broker": wrong}, root)
