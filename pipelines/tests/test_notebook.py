"""Test that the notebook plots tables like those of the pipeline, and was committed with the outputs of a demo. The
tests need neither Spark nor Jupyter.
"""

import base64
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MPLBACKEND", "agg")
import pyarrow as pa
from deltalake import write_deltalake
from execute import execute

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "tables.ipynb"
START = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
DEVICES = 5
MESSAGES = 200


def table(rows: list[dict[str, Any]], **kinds: pa.DataType) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))


KEY = {"log_id": pa.string(), "partition": pa.int32(), "offset": pa.int64()}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Create the tables that the notebook reads. One message is duplicated."""
    silver = [
        {
            "device": f"d{n % DEVICES}",
            "event_time": START + timedelta(seconds=n),
            "timestamp": START + timedelta(seconds=n, milliseconds=50 + n),
            "log_id": "log",
            "partition": n % 2,
            "offset": n // 2,
        }
        for n in range(MESSAGES)
    ]
    times = {"event_time": TIME, "timestamp": TIME}
    kinds = {"device": pa.string(), **times, **KEY}
    write_deltalake(str(tmp_path / "silver"), table(silver, **kinds))
    dead = [
        {"reason": reason, "timestamp": START, "log_id": "log", "partition": 0, "offset": 1000 + n}
        for n, reason in enumerate(["not_json", "not_json", "no_device"])
    ]
    dead.append({**dead[0], "offset": 7})  # silver has it, too
    kinds = {"reason": pa.string(), "timestamp": TIME, **KEY}
    write_deltalake(str(tmp_path / "dead_letter"), table(dead, **kinds))
    gold = [
        {
            "device": f"d{n % DEVICES}",
            "metric": "celsius",
            "window_start": START + timedelta(minutes=n // DEVICES),
            "min": 10.0,
            "avg": 20.0 + n,
            "max": 90.0,
        }
        for n in range(6 * DEVICES)
    ]
    doubles = {name: pa.float64() for name in ("min", "avg", "max")}
    kinds = {"device": pa.string(), "metric": pa.string(), "window_start": TIME, **doubles}
    write_deltalake(str(tmp_path / "gold"), table(gold, **kinds))
    return tmp_path


@pytest.fixture
def cells(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Run all cells, and return the variables that they define."""
    import matplotlib.pyplot as plt

    monkeypatch.setenv("TABLES", str(tables))
    book = json.loads(NOTEBOOK.read_text())
    yield execute(book)
    plt.close("all")


def test_the_notebook_shows_what_the_tables_hold(cells: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    averages, speeds, reasons = (plt.figure(number) for number in plt.get_fignums())
    drawn: Any
    lines = averages.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["d0", "d1", "d2", "d3"]
    drawn = lines[1].get_ydata()
    assert list(drawn) == [21.0 + DEVICES * n for n in range(6)]
    rate, age = speeds.axes
    drawn = rate.get_lines()[0].get_ydata()
    assert sum(drawn) == MESSAGES
    drawn = age.patches
    assert sum(bar.get_height() for bar in drawn) == MESSAGES
    drawn = reasons.axes[0].patches
    assert [bar.get_width() for bar in drawn] == [1, 3]
    assert cells["twice"] == 1


def test_the_notebook_is_committed_with_outputs() -> None:
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in cells]
    assert kinds == [["stream"], *[["display_data"]] * 3, ["stream", "execute_result"]]
    for cell in cells[1:4]:
        image = base64.b64decode(cell["outputs"][0]["data"]["image/png"])
        assert image.startswith(b"\x89PNG")
        assert len(image) > 5_000
    assert cells[-1]["outputs"][0]["text"] == ["0 messages are in the tables twice\n"]
