"""Test that YAML is parsed within limits, and that values keep their positions in the source."""

import pytest
from hookmq.config import yaml_document as document
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.yaml_document import YamlNode, decode, parse, scalar
from hookmq.model.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st


def test_every_key_and_value_knows_its_place() -> None:
    root = parse("a: 1\nb:\n  - x\n  - {c: two}\n", "f")
    assert root.keys["b"][1:] == (2, 1)
    assert root.value["a"].place[1:] == (1, 4)
    inner = root.at(("b", 1))
    assert inner.place[1:] == (4, 5)
    assert (inner.keys["c"][1:], inner.value["c"].place[1:]) == ((4, 6), (4, 9))
    assert root.at(("b", 7, "x")) is root.value["b"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("False", False), ("yes", "yes"), ("on", "on"),
        ("off", "off"), ("1", 1), ("-7", -7), ("0x1F", 31), ("0o17", 15), ("017", 17), ("1_000", "1_000"),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("-.inf", float("-inf")), ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"), ("5s", "5s"), ("=", "="), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_plain_words_follow_yaml_1_2(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_quotes_make_text() -> None:
    root = parse("a: '1'\nb: \"true\"\nc: |\n  5\n", "f")
    assert [node.value for node in root.value.values()] == ["1", "true", "5\n"]


def test_aliases_are_read_and_places_are_those_of_the_anchor() -> None:
    root = parse("a: &x {k: 1}\nb: *x\n", "f")
    assert root.value["b"].value["k"].value == 1
    assert root.value["b"].place[1:] == (1, 4)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(ConfigError, match=f"expand to more than {document.MAX_NODES} values"):
        parse("\n".join(lines), "f")


def test_an_alias_to_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="deep"):
        parse("a: &a [*a]", "f")


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_depth_is_bounded_before_anything_recurses(opening: str) -> None:
    with pytest.raises(ConfigError, match="nested deeper than 64 levels"):
        parse(opening * 100_000, "f")


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(ConfigError, match="more than 200000 values"):
        parse("[" + "a," * 200_001 + "]", "f")


def test_a_file_is_bounded_and_utf_8() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        decode(b" " * (document.MAX_BYTES + 1), "f")
    with pytest.raises(ConfigError) as caught:
        decode(b"a: 1\nb: \xff", "f")
    assert str(caught.value) == "f:2:4: not UTF-8 text"
    assert decode(b"\xef\xbb\xbfa: 1", "f") == "a: 1"


def test_duplicates_go_to_the_problems_and_the_first_stays() -> None:
    problems = ConfigProblems()
    root = parse("a: 1\nb: {c: 1, c: 2}\na: 2\n", "f", problems)
    assert root.value["a"].value == 1
    assert [str(error) for error in problems.errors] == [
        "f:2:11: b: duplicate key 'c' (the first is in line 2)",
        "f:3:1: duplicate key 'a' (the first is in line 1)",
    ]


@given(st.text(max_size=200))
def test_any_text_is_a_document_or_a_config_error(text: str) -> None:
    found: object
    try:
        found = parse(text, "f")
    except ConfigError as error:
        found = error.source
    assert isinstance(found, YamlNode) or found == "f"


@given(st.dictionaries(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=5),
       st.text(max_size=20)))  # fmt: skip
def test_values_written_by_yaml_are_read_back(values: dict[str, str]) -> None:
    import yaml

    text = yaml.safe_dump(values, default_style='"')
    assert {key: node.value for key, node in parse(text, "f").value.items()} == values


@pytest.mark.parametrize(
    ("text", "place"),
    [("a:\n\tb: 1\n", "f:2:1: "), ("a:\n  b: 1\n\tc: 2\n", "f:3:1: "), ("\ta: 1\n", "f:1:1: ")],
)
def test_a_tab_is_called_a_tab(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value) == (f"{place}found a tab in the indentation (indent with spaces)")


def test_an_error_behind_other_line_ends_has_its_line() -> None:
    with pytest.raises(ConfigError, match=r"f:4:1: not YAML: .*could not find expected ':'"):
        parse("a: 1\rb: 2\rword\rc: 3", "f")
