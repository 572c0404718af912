"""Test the fast constructor of frozen dataclasses."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass

import pytest
from hookmq.mqtt.fast_constructor import fast_constructor


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    z: int = 3


class _Slots:
    __slots__ = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Inheriting(_Slots):
    x: int
    y: int = 2
    z: int = 3


make = fast_constructor(Point)


@pytest.mark.parametrize("kind", [Point, Inheriting])
def test_it_makes_what_the_class_makes(kind: type[Point]) -> None:
    make = fast_constructor(kind)
    for point in (make(1), make(1, 2, 3), make(1, z=3)):
        assert type(point) is kind
        assert point == kind(1)
        assert hash(point) == hash(kind(1))
        assert copy.copy(point) == pickle.loads(pickle.dumps(point)) == point
        with pytest.raises(FrozenInstanceError):
            point.x = 5  # type: ignore[misc]


def test_constructed_objects_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        make(1).x = 5  # type: ignore[misc]


def test_arguments_are_those_of_the_class() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        make()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'w'"):
        make(1, w=1)  # type: ignore[call-arg]
