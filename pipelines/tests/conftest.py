"""One Spark session, which all tests share, including those of the data source."""

from sparks import pytest_sessionfinish, pytest_unconfigure, spark

__all__ = ["pytest_sessionfinish", "pytest_unconfigure", "spark"]
