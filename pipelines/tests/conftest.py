"""One Spark for all tests, that of the data source's tests."""

from sparks import pytest_sessionfinish, pytest_unconfigure, spark

__all__ = ["pytest_sessionfinish", "pytest_unconfigure", "spark"]
