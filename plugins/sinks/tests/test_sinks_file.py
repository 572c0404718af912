"""Test the `file` driver: the driver contract, rotation, and what a crash leaves behind."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hookmq_sinks.drivers.file import FileDriver
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_record


def lines(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("*.jsonl*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found += [json.loads(line) for line in text.splitlines()]
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
