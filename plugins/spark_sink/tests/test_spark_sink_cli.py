"""Test the command ``hookmq spark``."""

import argparse
import json
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq_spark_sink import cli, files
from hookmq_spark_sink.export import parquet
from hookmq_spark_sink.export.places import UsageError
from hookmq_spark_sink.reading import StreamReader


@pytest.fixture
def run() -> Callable[..., int]:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)

    def call(*words: object) -> int:
        arguments = parser.parse_args([str(word) for word in words])
        code: int = arguments.run(arguments)
        return code

    return call


Run = Callable[..., int]
Keep = Callable[..., Any]


@pytest.fixture
def kept(keep: Keep) -> Any:
    made = keep(partitions=2)
    for number in range(4):
        made.publish(b"%d" % number, topic=f"t/{number % 2}")
    made.publish(b"\xff", topic="raw")
    made.publish(b"never", commit=False)
    return made


def test_status(run: Run, kept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stream = kept.stream
    place = max(range(2), key=lambda one: stream.latest[one])
    files.write_consumers(stream.folder, stream.log.id, {"etl": files.Consumer({place: 1}, 1.0)})
    reader = StreamReader(stream.folder, None)
    reader.refresh()
    reader.report("bronze", "q", 0, 1200)
    assert run("status", kept.path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["records"], shown["log_id"]) == ("all", 5, stream.log.id)
    assert shown["partitions"] == {
        str(place): {"earliest": 0, "latest": latest} for place, latest in enumerate(stream.latest)
    }
    assert shown["bytes_per_record"] == round(shown["bytes"] / 5, 1)
    assert (shown["refused"], shown["dropped"], shown["full"], shown["held"]) == (
        0,
        0,
        False,
        False,
    )
    now = time.time()
    assert abs(shown["oldest"] - (now - kept.runtime.time())) < 3600
    etl = shown["consumers"]["etl"]
    assert (etl["lag"], etl["declared"], etl["silent"], etl["updated"]) == (4, False, False, 1.0)
    assert 0 <= shown["oldest"] - etl["lag_seconds"] < 3600
    assert etl["dead_letters"] is None
    assert shown["consumers"]["bronze"]["dead_letters"] == 1200
    kept.open(last=kept.commit - 1, consumers=("etl", "bronze"))
    assert run("status", kept.path, "all") == 0
    shown = capsys.readouterr().out
    assert re.search(r"consumer etl lags 4, \d+ d, last commit 1970-01-01 00:00:01 UTC\n", shown)
    assert re.search(
        r"consumer bronze lags 5, \d+ d, 1,200 dead letters: it has never committed, so all messages are kept",
        shown,
    )


def test_status_of_a_stopped_broker_tells_of_refusals(
    run: Run, keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"segment_size": 4096, "max_bytes": 1 << 16, "retention_bytes": 1 << 14}
    kept = keep(consumers=("bronze",), **small)
    while not kept.stream.full:
        kept.publish(b"x" * 3000)
    kept.look()
    assert kept.stream.upkeep.held
    assert [one[:2] for one in kept.runtime.logged if "held" in one[1]] == [
        ("warning", "spark_sink.retention_held")
    ]
    kept.close()
    assert run("status", kept.path) == 0
    shown = capsys.readouterr().out
    assert "  refused    1 since the broker started; it is full\n" in shown
    assert "  retention waits for a consumer\n" in shown
    (kept.stream.folder / "operation.json").write_text("{")
    with pytest.raises(StoreError, match=r"operation.json cannot be read"):
        run("status", kept.path)


def test_status_of_an_unknown_stream(run: Run, kept: Any) -> None:
    with pytest.raises(StoreError, match=r"contains no stream other, only: all"):
        run("status", kept.path, "other")
    with pytest.raises(StoreError, match=r"nowhere: No such file or directory"):
        run("status", kept.path / "nowhere")


def test_status_names_undeclared_consumers(
    run: Run, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = kept.open(last=kept.commit - 1, consumers=("bronze",))
    known = {"plant.bronze": files.Consumer({}, 1.0)}
    files.write_consumers(stream.folder, stream.log.id, known)
    assert run("status", kept.path) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"consumer plant.bronze lags 5, .* UTC: it is not declared, so messages are not kept", shown
    )


def test_read(run: Run, kept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: object) -> list[dict[str, Any]]:
        assert run("read", kept.path, "all", *words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    every = rows()
    assert sorted(row.get("payload", "raw") for row in every) == ["0", "1", "2", "3", "raw"]
    assert [row["payload_base64"] for row in every if row["topic"] == "raw"] == ["/w=="]
    assert [row["payload"] for row in rows("--topics", "t/1")] == ["1", "3"]
    assert len(rows("--count", 2)) == 2
    assert rows("--partition", 0) + rows("--partition", 1) == every
    assert rows("--partition", 0, "--start", 1) == rows("--partition", 0)[1:]
    assert rows("--partition", 0, "--end", 1) == rows("--partition", 0)[:1]


def test_after_the_broker(run: Run, kept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept.close()
    (kept.stream.folder / "state").unlink()
    assert run("check", kept.path) == 0
    assert "all: 6 records" in capsys.readouterr().out


def test_check_finds_damage(run: Run, kept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", kept.path, "all") == 0
    assert "are intact" in capsys.readouterr().out
    path = kept.stream.log.segments[0].path
    content = bytearray(path.read_bytes())
    content[content.index(b"t/0")] ^= 1
    path.write_bytes(content)
    assert run("check", kept.path) == 1
    assert "wrong checksum" in capsys.readouterr().out


def test_missing_streams_and_folders_are_reported(
    run: Run, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="contains no stream nope, only: all"):
        run("read", kept.path, "nope")
    with pytest.raises(StoreError, match="all is a stream; name the folder that contains it"):
        run("status", kept.stream.folder)
    (kept.path / "other").mkdir()
    with pytest.raises(StoreError, match="other contains no streams"):
        run("status", kept.path / "other")
    with pytest.raises(StoreError, match="No such file"):
        run("status", kept.path / "gone")
    with pytest.raises(StoreError, match="has 2 partitions"):
        run("read", kept.path, "all", "--partition", 2)
    assert run("read", kept.path, "all", "--topics", "a/#/b") == 2
    assert "--topics" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("read", kept.path, "all", "--start", "-1")
    assert cli.EXAMPLES


@pytest.mark.parametrize("missing", ["pyarrow", "fsspec"])
def test_export_without_its_extra(
    run: Run, kept: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(parquet, "_schema", lambda arrow: None)
    with pytest.raises(UsageError) as caught:
        run("export", kept.path, "s3://bucket/mqtt")
    assert caught.value.exit_code == 2
    assert f"hookmq spark export needs {missing} (" in str(caught.value)
    assert "uv pip install './plugins/spark_sink[export]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_export_of_what_is_not_there(run: Run, kept: Any) -> None:
    with pytest.raises(UsageError, match="gone is not a folder"):
        run("export", kept.path / "gone", "lake")
    for words in (("--file-size", "many"), ("--once", "--follow"), ("--compression", "lzo")):
        with pytest.raises(SystemExit):
            run("export", kept.path, "lake", *words)


def test_the_broker_imports_nothing_of_it() -> None:
    code = (
        "import sys, hookmq_spark_sink.plugin, hookmq_spark_sink.cli\n"
        "print([n for n in sys.modules if n.startswith(('pyarrow', 'fsspec', 'hookmq_spark_sink.export'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_a_stream_that_serves_a_queue(run: Run, kept: Any) -> None:
    folder = kept.path / "served"
    folder.mkdir()
    (folder / "queue.json").write_text("{}")
    for words in (("status",), ("read",), ("check",)):
        with pytest.raises(
            StoreError, match=r"serves a queue, so .* does not contain its messages"
        ):
            run(*words, kept.path, "served")
    assert run("status", kept.path) == 0  # the other one


def test_a_folder_whose_streams_all_serve_queues(run: Run, tmp_path: Any) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "queue.json").write_text("{}")
    with pytest.raises(StoreError, match="its streams serve queues"):
        run("status", tmp_path)
