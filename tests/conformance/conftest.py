"""The pytest marks for the conformance tests. See `statements` in tests/support and docs/reference/conformance.md."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "statement(*ids): normative statements that a test covers")
    config.addinivalue_line("markers", "edge(*numbers): edge cases that a test covers")
