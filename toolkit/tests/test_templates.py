"""Test that placeholders are found and filled, and that a value never changes the structure of the surrounding text."""

import json
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hookmq.plugin import ConfigError
from hookmq_toolkit.templates import (
    JsonTemplate,
    Template,
    at_path,
    check_names,
    fill_header,
    fill_url,
    text_of,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "names", "only", "unclosed", "filled"),
    [
        ("", (), None, False, ""),
        ("plain {x} $x", (), None, False, "plain {x} $x"),
        ("${a}", ("a",), "a", False, "<a>"),
        ("x${a}", ("a",), None, False, "x<a>"),
        ("${a}${b.c}!", ("a", "b.c"), None, False, "<a><b.c>!"),
        ("${}", ("",), "", False, "<>"),
        ("${a", (), None, True, "${a"),
        ("${${a}}", ("a",), None, True, "${<a>}"),
        ("${a}${", ("a",), None, True, "<a>${"),
        ("$${a}", ("a",), None, False, "$<a>"),
    ],
)
def test_a_template(
    text: str, names: tuple[str, ...], only: str | None, unclosed: bool, filled: str
) -> None:
    template = Template(text)
    assert (template.text, template.names, template.only, template.unclosed) == (
        text,
        names,
        only,
        unclosed,
    )
    assert template.fill(lambda name: f"<{name}>") == filled


def test_a_missing_value_leaves_nothing() -> None:
    template = Template("${a}-${b}")
    assert template.fill({"a": "x"}.get) is None
    assert template.fill({"a": "x", "b": ""}.get) == "x-"
    assert Template("text").fill(lambda name: None) == "text"


def test_a_value_is_not_a_template() -> None:
    assert Template("${a}").fill(lambda name: "${a}") == "${a}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ("x", "x"), (True, "true"), (False, "false"), (7, "7"), (1.5, "1.5"), (["é"], '["é"]'),
        ({"a": None}, '{"a": null}'),
    ],
)  # fmt: skip
def test_a_json_value_as_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_a_json_template_keeps_types_and_shape() -> None:
    template = JsonTemplate(
        {"user": "${user}", "n": "${n}", "${user}": ["${n}/${user}", 1, None, "x"], "t": ("${n}",)}
    )
    values: dict[str, Any] = {"user": 'ann", "admin": true, "', "n": 7}
    assert template.names == ("user", "n", "n", "user", "n")
    assert template.fill(values.get) == {
        "user": 'ann", "admin": true, "',
        "n": 7,
        "${user}": ['7/ann", "admin": true, "', 1, None, "x"],
        "t": [7],
    }
    assert json.loads(json.dumps(template.fill(values.get)))["user"] == values["user"]
    assert template.fill(lambda name: None)["user"] is None


@given(st.text(max_size=20))
def test_a_value_stays_one_segment_of_a_url(value: str) -> None:
    value = value.encode("utf-8", "replace").decode()
    url = fill_url(Template("http://host/a/${v}/b?q=${v}"), lambda name: value)
    parts = urlsplit(url)
    assert (parts.hostname, parts.fragment) == ("host", "")
    before, middle, after = parts.path.removeprefix("/").split("/")
    assert (before, after) == ("a", "b")
    assert unquote(middle) == unquote(parts.query.removeprefix("q=")) == value
    assert middle not in (".", "..")


@pytest.mark.parametrize(
    ("value", "made"), [("..", "%2E%2E"), (".", "%2E"), ("a.b", "a.b"), ("", "")]
)
def test_dots_alone_are_not_a_way_up(value: str, made: str) -> None:
    assert fill_url(Template("http://h/${v}/x"), lambda name: value) == f"http://h/{made}/x"


@pytest.mark.parametrize("bad", ["a\r\nX: y", "\n", "\0", "\x7f", "\t"])
def test_a_header_takes_no_control_character(bad: str) -> None:
    with pytest.raises(ValueError, match="control"):
        fill_header(Template("X ${v}"), lambda name: bad)
    assert fill_header(Template("X ${v}"), lambda name: "é y") == "X é y"


def test_unknown_names_are_refused() -> None:
    check_names(("a", "b", "a"), ("a", "b", "c"), "url")
    with pytest.raises(
        ConfigError, match=r"url: unknown placeholder \$\{d\} \(known: a, b\)"
    ) as raised:
        check_names(("a", "d"), ("b", "a"), "url")
    assert raised.value.hint == "known: a, b"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", 1), ("a", {"b": 1}), ("list.1.x", 2), ("list.0", None), ("list.2", None), ("list.x", None),
        ("list.-1", None), ("list.\u0661", None), ("list." + "9" * 5000, None), ("a.b.c", None), ("missing", None),
    ],
)  # fmt: skip
def test_parts_of_a_value(path: str, expected: Any) -> None:
    value = {"a": {"b": 1}, "list": [None, {"x": 2}]}
    assert at_path(value, path.split(".")) == expected
    assert at_path(value, []) is value
