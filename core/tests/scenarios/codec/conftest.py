"""Fixtures for the packet vectors: `vector` is any row, `good` a row with a packet, `bad` a row with an error."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_LOADER = Path(__file__).parents[4] / "tests" / "vectors" / "loader.py"


def _load() -> list[Any]:
    spec = importlib.util.spec_from_file_location("packet_vectors", _LOADER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows: list[Any] = module.load()
    return rows


VECTORS = _load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, rows in (
        ("vector", VECTORS),
        ("good", [v for v in VECTORS if v.packet is not None]),
        ("bad", [v for v in VECTORS if v.error is not None]),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, rows, ids=[v.id for v in rows])


@pytest.fixture(scope="session")
def vectors() -> list[Any]:
    return VECTORS
