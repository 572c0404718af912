"""Streams in a folder, with a runtime that runs threads as turns of a virtual event loop."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import EMPTY, Message, Properties
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.index import StreamIndex, parse
from hookmq_spark_sink.merge import merge
from hookmq_spark_sink.stream import Stream
from hookmq_testing.runtime import VirtualRuntime

BOOT = bytes(range(16))


class Kept:
    """A stream, the commits of its store, and the messages published to it."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.path = path
        self.config: dict[str, Any] = {"name": "all", "topics": ("#",), **config}
        self.runtime = VirtualRuntime()
        self.commit = 0
        self.store = "s"
        self.min_free = 0
        self.stream = self.make()

    def make(self) -> Stream:
        """Return a stream that is not open yet."""
        config = StreamConfig(**self.config)
        made = Stream(config, self.path, self.runtime, boot=BOOT, min_free=self.min_free)
        made.upkeep.merge = merge  # a process takes its time
        return made

    def open(self, last: int | None = None, **config: Any) -> Stream:
        """Open the stream, closing it first if needed."""
        self.close()
        self.config.update(config)
        self.commit = self.commit if last is None else last
        self.stream = self.make()
        self.stream.recover(CommitId(self.store, self.commit))
        return self.stream

    def publish(
        self,
        *payloads: bytes,
        topic: str = "t/1",
        properties: Properties = EMPTY,
        commit: bool = True,
    ) -> list[StoreFailed | None]:
        """Publish the payloads in one commit, and return the results of its flush. If `commit` is False, the store
        never commits them.
        """
        self.commit += 1
        one = CommitId(self.store, self.commit)
        for payload in payloads:
            time = self.runtime.time()
            made = Message(topic, payload, 1, properties=properties, sender="me", received_at=time)
            self.stream.append(one, made)
        told: list[StoreFailed | None] = []
        self.stream.flush(one, told.append)
        self.runtime.run_until_idle()
        if commit and told == [None]:
            self.stream.committed(one)
            self.runtime.run_until_idle()
        return told

    def look(self) -> None:
        """Apply the retention rules."""
        self.stream.upkeep.look()
        self.runtime.run_until_idle()

    def payloads(self, partition: int = 0) -> list[bytes]:
        """Return the payloads on disk."""
        return [row["payload"] for row in self.rows(partition)]

    def rows(self, partition: int = 0) -> list[dict[str, Any]]:
        """Return the rows on disk."""
        from hookmq_spark_sink.block import rows

        index = StreamIndex(self.stream.folder)
        index.refresh(None)
        return [
            row
            for segment, place in index.blocks(partition, 0, 1 << 60)
            for row in rows(parse(segment, place))
        ]

    def close(self) -> None:
        """Close the stream."""
        self.stream.close()


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    """Return a function that creates and opens streams."""
    made: list[Kept] = []

    def make(**config: Any) -> Kept:
        kept = Kept(tmp_path / "spark", **config)
        made.append(kept)
        kept.open()
        return kept

    yield make
    for one in made:
        one.close()
