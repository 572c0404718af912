"""One Spark session for all tests."""

from sparks import pytest_sessionfinish, pytest_unconfigure, spark

__all__ = ["pytest_sessionfinish", "pytest_unconfigure", "spark"]
