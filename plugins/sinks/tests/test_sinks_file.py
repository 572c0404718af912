"""Test the `file` driver: the driver contract, both formats, rotation, and what a kill leaves behind."""

import asyncio
import gzip
import json
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Position, Rejected, TargetUnavailable
from hookmq_sinks.drivers.file import FileDriver
from hookmq_sinks.record import Record
from hookmq_sinks.testing import LOG_ID, DriverContract, make_batch, make_record


def lines(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("*.jsonl*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all complete files, and then those of the open file."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    for path in sorted(folder.glob("*.parquet.open")):
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            found += stream.read_all().to_pylist()
    return found


class TestFile(DriverContract):
    kind = FileDriver

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "out"

    def target_settings(self) -> Mapping[str, Any]:
        return {"path": str(self.folder)}

    async def stored_ids(self) -> list[str]:
        return [one["id"] for one in lines(self.folder)]

    def poison(self, offset: int) -> Record:
        record = make_record(offset)
        record.value = {"n": float("nan")}
        return record

    async def stop_target(self) -> None:
        self.folder.rename(self.folder.with_name("away"))
        self.folder.write_text("not a folder")

    async def start_target(self) -> None:
        self.folder.unlink()
        self.folder.with_name("away").rename(self.folder)


class TestParquet(TestFile):
    def target_settings(self) -> Mapping[str, Any]:
        return {
            "path": str(self.folder), "format": "parquet",
            "fields": {"id": "${id}", "n": "${payload.n}"}, "types": {"n": "long"},
        }  # fmt: skip

    async def stored_ids(self) -> list[str]:
        return [one["id"] for one in rows(self.folder)]

    def poison(self, offset: int) -> Record:
        return make_record(offset, {"n": "seven"})


class TestWholeMessagesInParquet(TestParquet):
    def target_settings(self) -> Mapping[str, Any]:
        return {
            "path": str(self.folder),
            "format": "parquet",
            "compression": "zstd",
            "rotate_size": 1024,
        }

    def poison(self, offset: int) -> Record:
        pytest.skip("these columns take every record")


def settings(folder: Path, **target: Any) -> Any:
    return bind_values(FileDriver.Settings, {"path": str(folder), "rotate_time": "0s", **target})


def driver(folder: Path, log_id: str = LOG_ID, **target: Any) -> FileDriver:
    return FileDriver(settings(folder, **target), DriverContext("test", "test", log_id))


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))


def name(offset: int, suffix: str) -> str:
    return f"test-{LOG_ID[:8]}-{offset:020d}{suffix}"


async def write(one: FileDriver, *batches: range, size: int = 1) -> None:
    for offsets in batches:
        await one.write(make_batch([make_record(at, {"n": at, "x": "y" * size}) for at in offsets]))


async def until_named(folder: Path, *wanted: str) -> None:
    for _ in range(1000):
        if names(folder) == list(wanted):
            return
        await asyncio.sleep(0.01)  # the file is completed in a thread
    raise AssertionError(names(folder))


@pytest.mark.parametrize(
    ("format", "compression", "suffix"),
    [
        ("jsonl", "none", ".jsonl"),
        ("jsonl", "gzip", ".jsonl.gz"),
        ("parquet", "snappy", ".parquet"),
    ],
)
async def test_a_file_is_completed_at_its_size_and_old_ones_are_removed(
    tmp_path: Path, format: str, compression: str, suffix: str
) -> None:
    one = driver(tmp_path, format=format, compression=compression, rotate_size=4096, keep_files=2)
    await one.open()
    await write(one, *(range(at, at + 5) for at in range(0, 25, 5)), size=1000)
    plain = f".{format}.open"
    assert names(tmp_path) == [name(10, suffix), name(15, suffix), name(20, plain)]
    await one.close()
    if format == "parquet":
        file = pq.ParquetFile(tmp_path / name(15, suffix))
        assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
        assert [json.loads(row["payload"])["n"] for row in rows(tmp_path)] == list(range(10, 25))


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
async def test_a_file_is_completed_after_its_time_without_another_message(
    tmp_path: Path, format: str
) -> None:
    one = driver(tmp_path, format=format, rotate_time="50ms")
    await one.open()
    await write(one, range(3))
    await until_named(tmp_path, name(0, f".{format}"))
    await write(one, range(3, 5))
    await until_named(tmp_path, name(0, f".{format}"), name(3, f".{format}"))
    await one.close()
    again = driver(tmp_path, format=format)
    assert await again.open() == Position(LOG_ID, 5)
    await again.close()


async def test_a_file_that_cannot_be_completed_in_time_makes_the_next_write_fail(
    tmp_path: Path,
) -> None:
    one = driver(tmp_path / "out", rotate_time="50ms")
    await one.open()
    await write(one, range(3))
    (tmp_path / "out").rename(tmp_path / "away")
    for _ in range(1000):
        if one._failed is not None:
            break
        await asyncio.sleep(0.01)  # the file is completed in a thread
    with pytest.raises(TargetUnavailable, match="No such file"):
        await write(one, range(3, 4))
    await one.close()


async def test_values_have_the_types_of_their_columns(tmp_path: Path) -> None:
    types = {"a": "long", "b": "double", "c": "boolean", "d": "timestamp", "e": "binary"}
    fields = {key: f"${{payload.{key}}}" for key in (*types, "f")} | {"g": "fixed"}
    one = driver(tmp_path, format="parquet", fields=fields, types=types)
    await one.open()
    value = {"a": 1, "b": 2, "c": True, "d": "2030-01-31T12:00:00Z", "e": "x", "f": "ü"}
    await one.write(make_batch([make_record(0, value), make_record(1, {})]))
    half = make_record(2)
    half.value = {"f": "\ud800"}  # half of a surrogate pair, which JSON allows
    with pytest.raises(Rejected) as caught:
        await one.write(make_batch([half, make_record(3, {"a": 1.5})]))
    assert list(caught.value.reasons) == [0, 1]
    await one.close()
    first, second = rows(tmp_path)
    assert first["d"].isoformat() == "2030-01-31T12:00:00+00:00"
    assert first | {"d": 0} == {
        "a": 1,
        "b": 2.0,
        "c": True,
        "d": 0,
        "e": b"x",
        "f": "ü",
        "g": "fixed",
    }
    assert second == dict.fromkeys((*types, "f")) | {"g": "fixed"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"format": "jsonl"}, {"format": "parquet"}),
        ({"format": "parquet"}, {"format": "jsonl"}),
        (
            {"format": "parquet", "fields": {"n": "${payload.n}"}},
            {"format": "parquet", "fields": {"n": "${payload.n}"}, "types": {"n": "long"}},
        ),
    ],
)
async def test_a_change_of_the_format_or_the_columns_begins_a_new_file(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    one = driver(tmp_path, **before)
    await one.open()
    await write(one, range(2))
    await one.close()
    one = driver(tmp_path, **after)
    assert await one.open() == Position(LOG_ID, 2)
    await write(one, range(2, 4))
    await one.close()
    assert names(tmp_path) == [
        name(0, f".{before['format']}"), name(2, f".{after['format']}.open")
    ]  # fmt: skip


async def test_a_new_log_completes_the_file_of_the_old_one(tmp_path: Path) -> None:
    one = driver(tmp_path, format="parquet")
    await one.open()
    await write(one, range(2))
    await one.close()
    one = driver(tmp_path, log_id="beef" * 8, format="parquet")
    assert await one.open() is None
    await write(one, range(1))
    await one.close()
    assert names(tmp_path) == sorted([name(0, ".parquet"), f"test-beefbeef-{0:020d}.parquet.open"])


@pytest.mark.parametrize(
    ("format", "compression", "suffix"), [("jsonl", "gzip", ".gz"), ("parquet", "none", "")]
)
async def test_a_kill_between_completing_a_file_and_removing_the_open_one_repeats_nothing(
    tmp_path: Path, format: str, compression: str, suffix: str
) -> None:
    one = driver(tmp_path, format=format, compression=compression, rotate_time="0s")
    await one.open()
    await write(one, range(2))
    opened = tmp_path / name(0, f".{format}.open")
    data = opened.read_bytes()
    one._complete()
    opened.write_bytes(data)
    await one.close()
    one = driver(tmp_path, format=format, compression=compression)
    assert await one.open() == Position(LOG_ID, 2)
    await write(one, range(2, 3))
    await one.close()
    assert names(tmp_path) == [name(0, f".{format}{suffix}"), name(2, f".{format}.open")]


async def test_a_damaged_open_file_is_named(tmp_path: Path) -> None:
    one = driver(tmp_path, format="parquet")
    await one.open()
    await write(one, range(2))
    await one.close()
    opened = tmp_path / name(0, ".parquet.open")
    opened.write_bytes(b"\0" * opened.stat().st_size)
    one = driver(tmp_path, format="parquet")
    with pytest.raises(TargetUnavailable, match=r"parquet.open is damaged") as caught:
        await one.open()
    assert caught.value.permanent
    await one.close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"compression": "zstd"}, "compression: zstd needs `format: parquet`"),
        ({"types": {"n": "long"}}, "types: needs `format: parquet`"),
        ({"format": "parquet", "types": {"n": "long"}}, "types: n is not one of the fields"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    tmp_path: Path, target: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **target)


# kills ---------------------------------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from hookmq.config_api import bind_values
from hookmq_sinks.driver import DriverContext
from hookmq_sinks.drivers.file import FileDriver
from hookmq_sinks.testing import LOG_ID, make_batch, make_record

async def main():
    given = {"path": sys.argv[1], "format": sys.argv[2], "compression": sys.argv[3], "rotate_size": 2048}
    settings = bind_values(FileDriver.Settings, given)
    one = FileDriver(settings, DriverContext("test", "test", LOG_ID))
    held = await one.open()
    at = held.offset if held else 0
    while True:
        await one.write(make_batch([make_record(number) for number in range(at, at + 7)]))
        at += 7
        print(at, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("format", "compression"), [("parquet", "zstd"), ("jsonl", "gzip")])
def test_each_message_is_in_one_file_after_kills(
    tmp_path: Path, format: str, compression: str
) -> None:
    folder, drawn, confirmed = tmp_path / "out", random.Random(7), 0
    for _ in range(8):
        words = [sys.executable, "-c", WRITER, str(folder), format, compression]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(drawn.randrange(1, 25)):
                confirmed = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                confirmed = int(line)
    one = driver(folder, format=format)
    held = asyncio.run(one.open())  # cuts off what an interrupted batch has left
    asyncio.run(one.close())
    assert held is not None
    assert confirmed <= held.offset <= confirmed + 7
    found = [
        int(row["id"].rpartition(":")[2])
        for row in (rows if format == "parquet" else lines)(folder)
    ]
    assert found == list(range(held.offset))
