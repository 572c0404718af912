"""The report."""

from hookmq_bench.result import Result


def page(result: Result, version: str) -> str:
    """x"""
    return ""
