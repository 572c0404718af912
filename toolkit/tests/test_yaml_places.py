"""Test that YAML is read strictly and within limits, and that each value has its position."""

from typing import Any

import pytest
import yaml
from hookmq.plugin import ConfigError
from hookmq_toolkit.yaml_places import MAX_DEPTH, Node, parse
from hypothesis import given
from hypothesis import strategies as st

TEXT = """\
# users
version: 1
users:
  alice: {hash: 'a b', n: [1, "2"]}
  007:
    note: |
      two
      lines
    none:
last: [x]  # end
"""


def parsed(text: str) -> Node:
    node = parse(text, "f.yaml")
    assert node is not None
    return node


def at(node: Node, *path: str | int) -> Node:
    for part in path:
        below: Any = node.mapping if isinstance(part, str) else node.items
        node = below[part]
    return node


def test_values_have_places() -> None:
    root = parsed(TEXT)
    assert root.value == {
        "version": 1,
        "users": {
            "alice": {"hash": "a b", "n": [1, "2"]},
            "007": {"note": "two\nlines\n", "none": None},
        },
        "last": ["x"],
    }
    places = {
        ("version",): (2, 10), ("users",): (4, 3), ("users", "alice"): (4, 10), ("users", "alice", "n", 1): (4, 31),
        ("users", "007", "none"): (9, 10), ("last",): (10, 7),
    }  # fmt: skip
    for path, place in places.items():
        node = at(root, *path)
        assert (node.line, node.column) == place, path
    keys = {("version",): (2, 1), ("users", "007"): (5, 3), ("users", "alice", "n"): (4, 24)}
    for path, place in keys.items():
        key = at(root, *path).key
        assert key is not None
        assert (key.line, key.column) == place, path
        assert key.text == path[-1]
    assert root.key is None
    assert at(root, "last", 0).key is None


def test_offsets_cut_a_value_out() -> None:
    root = parsed(TEXT)

    def cut(*path: str | int) -> str:
        node = at(root, *path)
        return TEXT[node.start : node.content_end]

    assert cut("users", "alice") == "{hash: 'a b', n: [1, \"2\"]}"
    assert cut("users", "alice", "hash") == "'a b'"
    assert cut("users", "alice", "n", 0) == "1"
    assert cut("users", "007", "none") == ""
    assert cut("users").endswith("none:")
    assert TEXT[: root.content_end].endswith("last: [x]")
    assert at(root, "last").flow
    assert not root.flow


@pytest.mark.parametrize(
    ("text", "value", "plain"),
    [
        ("yes", "yes", True), ("true", True, True), ("'true'", "true", False), ("1:30", "1:30", True), ("0x10", 16, True),
        ("1.5", 1.5, True), ('"1"', "1", False), ("~", None, True), ("''", "", False), ("|\n  1\n", "1\n", False),
        ("2001-01-01", "2001-01-01", True), (".inf", float("inf"), True), ("! 1", 1, True),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any, plain: bool) -> None:
    node = at(parsed(f"a: {text}\n"), "a")
    assert (node.value, type(node.value), node.plain) == (value, type(value), plain)
    assert isinstance(node.text, str)


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n", "---\n...\n"])
def test_a_document_without_a_value(text: str) -> None:
    node = parse(text, "f.yaml")
    assert node is None or node.value is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [\n", "f.yaml:2:1: not YAML: while parsing a flow node: did not find expected node content"),
        ("a: 1\n---\nb: 1\n", "f.yaml:3:1: a second document starts here"),
        ("a: &x 1\n", "f.yaml:1:4: anchors and aliases are not accepted"),
        ("a: *x\n", "f.yaml:1:4: anchors and aliases are not accepted"),
        ("a: !!str 1\n", "f.yaml:1:4: tags are not accepted"),
        ("b: 1\na: 1\nb: 2\n", "f.yaml:3:1: the key 'b' is given twice (first in line 1)"),
        ("{[a]: 1}\n", "f.yaml:1:2: a key must be a word"),
        ("? {a: b}\n", "f.yaml:1:3: a key must be a word"),
        ("a: \x07\n", "f.yaml: not YAML: invalid characters"),
        ("a: secret: x\n", "f.yaml:1:10: not YAML: mapping values are not allowed in this context"),
    ],
)  # fmt: skip
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value) == told


def test_depth_is_bounded() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    parsed(deepest)
    with pytest.raises(ConfigError, match=rf"f\.yaml:1:{MAX_DEPTH + 1}: nested more than"):
        parse(f"[{deepest}]", "f.yaml")
    with pytest.raises(ConfigError, match="nested more than 2 deep"):
        parse("[" * 100_000, "f.yaml", max_depth=2)


def test_the_number_of_values_is_bounded() -> None:
    assert parse("[1, 2, {a: b}]", "f.yaml", max_nodes=6) is not None
    with pytest.raises(ConfigError, match=r"f\.yaml:1:12: more than 5 values"):
        parse("[1, 2, {a: b}]", "f.yaml", max_nodes=5)


def test_an_error_at_a_node() -> None:
    node = at(parsed(TEXT), "last")
    error = node.error("wrong", "f.yaml", "try this")
    assert str(error) == "f.yaml:10:7: wrong (try this)"


YAMLISH = st.lists(
    st.sampled_from(
        ["a", "b", ":", ": ", "- ", "  ", "\n", "\n  ", "{", "}", "[", "]", ",", "&a ", "*a", "!!x ", "? ", "|\n", '"',
         "'", "---\n", "1", "#"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(YAMLISH | st.text(max_size=40))
def test_the_parsed_values_are_those_of_yaml(text: str) -> None:
    try:
        node = parse(text, "f.yaml")
    except ConfigError as error:
        source, node = error.source, None
    else:
        source = "f.yaml"
    assert source == "f.yaml"
    if node is not None:
        assert _texts(node) == yaml.load(text, yaml.BaseLoader)


def _texts(node: Node) -> Any:
    if node.mapping is not None:
        return {key: _texts(one) for key, one in node.mapping.items()}
    if node.items is not None:
        return [_texts(one) for one in node.items]
    return node.text
