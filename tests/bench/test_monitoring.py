"""Test that bench.monitoring runs and reports figures for each row. The figures depend on the machine."""

import pytest

from bench import monitoring


@pytest.mark.slow
def test_each_row_has_figures(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--sessions",
        "600",
        "--clients",
        "20",
        "--rate",
        "1000",
        "--seconds",
        "0.2",
        "--rounds",
        "1",
    ]
    assert monitoring.main(options) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.partition(" ")[0] for row in rows] == ["/metrics", "/slow-clients", "idle", "tail"]
    assert "with 600 sessions" in rows[0]
