"""Test how parsed values are bound to dataclasses."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import pytest
from binding_samples import Inner, Mood, bind
from hookmq.config.binding import FAILED, ConfigBinder
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.units import Rate
from hookmq.config.yaml_document import loose
from hookmq.plugin import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("flag: true", "flag", True),
        ("count: 0x10", "count", 16),
        ("ratio: 2", "ratio", 2.0),
        ("text: 5s", "text", "5s"),
        ("kind: 3", "kind", 3),
        ("mood: bad", "mood", Mood.BAD),
        ("wait: 1h30m", "wait", 5400.0),
        ("wait: 0.25", "wait", 0.25),
        ("room: 64KiB", "room", 65536),
        ("room: 10kB", "room", 10000),
        ("rate: 5000/min", "rate", Rate(5000, 60)),
        ("rates: [100/s, 10/5s]", "rates", (Rate(100, 1), Rate(10, 5))),
        ("names: [a, b]", "names", ("a", "b")),
        ("names:", "names", ()),
        ("pair: [1, x]", "pair", (1, "x")),
        ("items: [1, 2]", "items", [1, 2]),
        ("chosen: [a, a]", "chosen", frozenset({"a"})),
        ("table: {x: {level: 2}}", "table", {"x": Inner(level=2)}),
        ("plain: {a: 1}", "plain", {"a": 1}),
        ("inner: {path: q}", "inner", Inner("q")),
        ("inner:", "inner", Inner()),
        ("maybe: null", "maybe", None),
        ("maybe: {}", "maybe", Inner()),
        ("either: 5", "either", 5),
        ("either: five", "either", "five"),
        ("many: [a]", "many", ("a",)),
        ("many: a", "many", "a"),
        ("limit: 2s", "limit", 2.0),
        ("file: /x/y", "file", pathlib.Path("/x/y")),
        ("anything: [1, {a: null}]", "anything", [1, {"a": None}]),
    ],
)
def test_values_of_every_type(text: str, name: str, value: object) -> None:
    sample, problems = bind(text)
    assert problems == []
    assert getattr(sample, name) == value
    assert type(getattr(sample, name)) is type(value) or isinstance(value, Mapping)


def test_mappings_are_read_only() -> None:
    sample, _ = bind("table: {x: {}}")
    assert isinstance(sample.table, MappingProxyType)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "rate: 100",
            "f:1:7: rate: expected a rate such as 100/s or 5000/min, found the number 100",
        ),
        (
            "rate: x/s",
            "f:1:7: rate: expected a rate such as 100/s or 5000/min, found the text 'x/s'",
        ),
        (
            "rate: nan/s",
            "f:1:7: rate: expected a rate such as 100/s or 5000/min, found the text 'nan/s'",
        ),
        ("mood: sad", "f:1:7: mood: expected one of good, bad, found the text 'sad'"),
        ("pair: [1]", "f:1:7: pair: expected 2 values, found 1"),
        ("pair: [x, x]", "f:1:8: pair[0]: expected a whole number, found the text 'x'"),
        ("table: {x: {level: 9}}", "f:1:20: table.x.level: expected at most 5, found 9"),
        ("maybe: {pth: q}", "f:1:9: maybe.pth: unknown key (did you mean 'path'?)"),
        ("either: [1]", "f:1:9: either: expected a whole number or text, found a list"),
        ("hidden: 8", "f:1:1: hidden: unknown key"),
        ("ratio: .inf", "f:1:8: ratio: expected a number, found the number inf"),
    ],
)
def test_values_of_a_wrong_type_are_reported_with_their_place(text: str, expected: str) -> None:
    value, problems = bind(text)
    assert value is FAILED
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_unquoted_text_becomes_what_is_wanted() -> None:
    problems = ConfigProblems()
    binder = ConfigBinder(problems, {})
    assert binder.bind(loose("0123", "env"), str) == "0123"
    assert binder.bind(loose("0123", "env"), int) == 123
    assert binder.bind(loose("true", "env"), bool) is True
    assert binder.bind(loose("", "env"), str) == ""
    assert binder.bind(loose("3.1", "env"), Literal["3.1", "5"]) == "3.1"
    assert problems.errors == []


def test_a_class_may_refuse_its_own_values_and_name_the_key() -> None:
    @dataclass(frozen=True)
    class Picky:
        low: int = 0
        high: int = 9
        token: str = ""

        def __post_init__(self) -> None:
            if self.token == "bad":
                raise ValueError("token: 'bad' is a bad token")
            if self.low > self.high:
                raise ValueError(f"low: {self.low} is above {self.high}")
            if self.low == self.high:
                raise ValueError("an empty range")

    assert bind("low: 12", Picky)[1] == ["f:1:6: low: 12 is above 9"]
    assert bind("{low: 1, high: 1}", Picky)[1] == ["f:1:1: an empty range"]
    assert bind("token: bad", Picky)[1] == ["f:1:8: token: invalid value"]
    assert bind("high: -1", Picky)[1] == ["f:1:1: low: 0 is above -1"]


class Invalid(ValueError):
    def __init__(self, *details: tuple[tuple[str | int, ...], str]) -> None:
        super().__init__("invalid")
        self.details = details

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": loc, "msg": message} for loc, message in self.details]


class Model:
    """A class with the same interface as a pydantic model."""

    values: Mapping[str, Any]

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"properties": {"url": {}, "size": {}, "deep": {}}}

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> "Model":
        if values.get("size") == "big":
            raise Invalid(
                (("size",), "Input should be a number"), (("deep", 0, "x"), "Field required")
            )
        made = cls()
        made.values = values
        return made


def test_a_self_validating_class_gets_plain_values() -> None:
    made, problems = bind("url: {$env: U}\nsize: 5\n", Model, U="http://x")
    assert problems == []
    assert made.values == {"url": "http://x", "size": 5}


def test_errors_of_a_self_validating_class_get_places() -> None:
    _, problems = bind("url: x\nsize: big\ndeep:\n  - {y: 1}\n", Model)
    assert problems == [
        "f:2:7: size: Input should be a number",
        "f:4:5: deep[0].x: Field required",
    ]
    assert bind("ulr: x", Model)[1] == ["f:1:1: ulr: unknown key (did you mean 'url'?)"]


def test_a_type_that_cannot_be_bound_is_the_authors_mistake() -> None:
    @dataclass
    class Wrong:
        what: complex = 0j

    with pytest.raises(TypeError, match="complex"):
        bind("what: 1", Wrong)


@dataclass(frozen=True)
class Circle:
    radius: float
    center: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Named:
    name: str = ""


def shape_of(kind: str) -> type:
    if kind not in ("circle", "named"):
        raise ConfigError(f"{kind} is not a shape", hint="try circle")
    return Circle if kind == "circle" else Named


@dataclass(frozen=True)
class Shape:
    kind: str
    values: Any = field(default=None, metadata={"chosen_by": ("kind", shape_of)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{kind: circle, values: {radius: {$env: R}}}", Circle(7.0)),
        ("{kind: named, values: {name: {$env: R}}}", Named("7")),
        ("kind: named", Named()),
    ],
)
def test_a_value_chooses_the_type_of_another(text: str, value: object) -> None:
    shape, problems = bind(text, Shape, R="7")
    assert problems == []
    assert shape.values == value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("kind: circle", "values.radius: this key is missing"),
        ("{kind: circle, values: {radius: 1, name: x}}", "values.name: unknown key"),
        ("{kind: square, values: {radius: 1}}", "kind: square is not a shape (try circle)"),
        ("{values: {radius: 1}}", "kind: this key is missing"),
        ("{kind: 1, values: {radius: 1}}", "kind: expected text"),
    ],
)
def test_a_chosen_type_is_checked_strictly(text: str, wanted: str) -> None:
    shape, problems = bind(text, Shape)
    assert shape is FAILED
    assert len(problems) == 1
    assert wanted in problems[0]
