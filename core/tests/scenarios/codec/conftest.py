"""Fixtures that provide the packet vectors, `PART` of them per test. `some` contains any rows, `good` contains rows
with a packet, and `bad` contains rows with an error.
"""

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
"""The number of vectors in one test. One test per vector would cost far more than the check itself."""


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
