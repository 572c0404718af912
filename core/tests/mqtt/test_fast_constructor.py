"""Test the fast constructor of frozen dataclasses."""

from dataclasses import FrozenInstanceError, dataclass

import pytest
from hookmq.mqtt.fast_constructor import fast_constructor


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    z: int = 3


make = fast_constructor(Point)


@pytest.mark.parametrize("point", [make(1), make(1, 2, 3), make(1, z=3)])
def test_it_makes_what_the_class_makes(point: Point) -> None:
    assert type(point) is Point
    assert point == Point(1)
    assert hash(point) == hash(Point(1))


def test_constructed_objects_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        make(1).x = 5  # type: ignore[misc]


def test_arguments_are_those_of_the_class() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        make()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
        make(1, w=1)  # type: ignore[call-arg]
