"""Test the checks that DDL undergoes before Spark sees it. They never refuse DDL that Spark accepts."""

import pytest
from mqtt_pipelines.transforms.ddl import mistake


@pytest.mark.parametrize(
    "schema",
    [
        "celsius double not null, battery int, at bigint not null",
        "a map<int,string>, b struct<x: int, y: array<decimal(3, 2)>> not null",
        r"a decimal(10,2) comment 'x, it\'s y', `b c, ``d``` STRING",
        "a: int,b\ttimestamp_ntz\n",
    ],
)
def test_what_is_right(schema: str) -> None:
    assert mistake(schema) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("", "field 1 is empty"),
        ("a int,, b int", "field 2 is empty"),
        ("int", "expected a name and a type"),
        ("a-b int", "expected a name and a type"),
        ("a int, celsius doble", "'doble' in 'celsius doble' is not a Spark type; did you mean 'double'?"),
    ],
)  # fmt: skip
def test_what_is_wrong(schema: str, said: str) -> None:
    assert said in str(mistake(schema))
