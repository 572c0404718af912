"""Fixtures for the packet vectors, `PART` in each test: `some` are any rows, `good` rows with a packet, `bad` rows with
an error."""

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
PART = 50
"""Vectors in one test. A test for each of them would cost far more than the check itself."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, rows in (
        ("some", VECTORS),
        ("good", [v for v in VECTORS if v.packet is not None]),
        ("bad", [v for v in VECTORS if v.error is not None]),
    ):
        if name in metafunc.fixturenames:
            parts = [rows[at : at + PART] for at in range(0, len(rows), PART)]
            metafunc.parametrize(name, parts, ids=[part[0].id for part in parts])


@pytest.fixture(scope="session")
def vectors() -> list[Any]:
    return VECTORS
