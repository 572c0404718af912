"""Record a broker with a Spark sink, a publisher and a reader, and check what power cuts leave of the broker's data.

In addition to the marks of `brokercut.memory`, the reader records the rows it received, with CRCs of their payloads:
``["served", LOG, [[PARTITION, OFFSET, TOPIC, CRC], ...]]``.
"""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

from brokercut.load import Load
from brokercut.memory import Memory, number_of
from brokercut.runs import broker
from hookmq.storage.records import CommitId
from hookmq_spark_sink import block
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.index import StreamIndex, parse
from hookmq_spark_sink.merge import merge
from hookmq_spark_sink.placement import by_name
from hookmq_spark_sink.stream import Stream
from hookmq_storage.store import SQLiteStore
from hookmq_testing.runtime import VirtualRuntime
from powercut.recording import Cut, Recorder, Recording, Report, cut

TOKEN: Final = "powercut-token-0123456789"
PARTITIONS: Final = 3
SEGMENT: Final = 1 << 16
RETENTION: Final = 1 << 18
CONFIG: Final = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - {{use: storage, config: {{path: "{path}/data", durability: group}}}}
  - use: spark_sink
    config:
      path: "{path}/spark"
      check_every: 0.2s
      streams:
        - {{name: all, topics: ["k/#", "r/#"], partitions: 3, segment_size: 64KiB, retention_bytes: 256KiB}}
      api: {{bind: "127.0.0.1:0", access: [{{token: powercut-token-0123456789}}]}}
"""
Row = tuple[int, int, str, int]


class Reader:
    """Reads the stream as it grows, and records the received rows."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._reached: dict[int, int] = {}
        self.port = 0

    def _ask(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def step(self) -> None:
        """Read the new rows."""
        answer, body = self._ask("/v1/streams/all/offsets")
        assert answer.status == 200, body
        found = json.loads(body)
        rows: list[Row] = []
        for name, ends in found["partitions"].items():
            place, start = int(name), self._reached.get(int(name), 0)
            assert ends["latest"] >= start, f"partition {place} went back from {start}"
            start = max(start, ends["earliest"])
            if ends["latest"] == start:
                continue
            query = f"partition={place}&start={start}&end={ends['latest']}"
            answer, body = self._ask(f"/v1/streams/all/records?{query}")
            if answer.status == 410:
                continue  # deleted a moment ago
            assert answer.status == 200, body
            rows += [row for row in rows_of(body) if row[1] >= start]
            self._reached[place] = ends["latest"]
        if rows:
            self._recorder.mark(json.dumps(["served", found["log_id"], rows]).encode())


def rows_of(data: bytes) -> Iterator[Row]:
    """Yield the rows in a response."""
    at = 0
    while at < len(data):
        length = block.read_head(data, at).length
        yield from _rows(block.parse(data[at : at + length]))
        at += length


def _rows(one: block.Block) -> Iterator[Row]:
    for row in block.rows(one):
        yield one.partition, row["offset"], row["topic"], crc32(row["payload"])


def record(work: Path, seed: int, messages: int, lives: int = 2) -> Recording:
    """Record `lives` broker processes, one after another, with a publisher and a reader.

    Each process is stopped normally, because the last writes of a killed process cannot be recorded reliably.
    """
    recorder = Recorder(work / "disk", work)
    config = work / "hookmq.yaml"
    config.write_text(CONFIG.format(path=recorder.folder))
    load = Load(seed, recorder.mark)
    reader = Reader(recorder)
    for _ in range(lives):
        with broker(config, dict(recorder.environ)) as served:
            serving = [one for one in served.log if one["event"] == "spark_sink.serving"]
            reader.port = serving[0]["port"]
            load.arrive(served.ports["tcp"])
            wanted = len(load.memory.sent) + messages // lives
            while len(load.memory.sent) < wanted:
                load.step()
                reader.step()
            load.leave()
            assert served.stop() == 0, served.errors
    return recorder.recording()


@contextmanager
def opened(folder: Path) -> Iterator[Stream]:
    """Open the stream as a broker does at startup."""
    runtime = VirtualRuntime()
    store = SQLiteStore(folder / "data", runtime, "os")
    last: CommitId = store.last_commit()
    store.close(lambda: None)
    runtime.run_until_idle()
    config = StreamConfig("all", ("k/#", "r/#"), PARTITIONS, segment_size=SEGMENT, retention_time=0)
    stream = Stream(config, folder / "spark", runtime)
    stream.upkeep.merge = merge
    try:
        stream.recover(last)
        yield stream
    finally:
        stream.close()


def check(folder: Path, marks: list[bytes], one: Cut) -> None:
    """Check one power cut. Raise AssertionError or StoreError if a guarantee was broken."""
    told = [json.loads(mark) for mark in marks]
    served = [mark for mark in told if mark[0] == "served"]
    memory = Memory(mark for mark, known in zip(marks, told, strict=True) if known[0] != "served")
    with opened(folder) as stream:
        kept = _kept(stream)
        for _, log_id, rows in served:
            assert log_id == stream.log.id, f"a reader knows log {log_id}, this is {stream.log.id}"
            for place, offset, topic, payload in rows:
                if offset < stream.earliest[place]:
                    continue
                found = kept.get((place, offset))
                assert found is not None, (
                    f"offset {offset} of partition {place} was served and is gone"
                )
                assert (found[0], crc32(found[1])) == (topic, payload), (
                    f"offset {offset} of partition {place} was served as another message"
                )
        _acknowledged(memory, kept, stream.earliest)
        stream.upkeep.look()  # finishes what was interrupted, and changes nothing else
        stream._runtime.run_until_idle()  # type: ignore[attr-defined]
        assert _kept(stream) == {
            key: row for key, row in kept.items() if key[1] >= stream.earliest[key[0]]
        }


def _kept(stream: Stream) -> dict[tuple[int, int], tuple[str, bytes]]:
    index = StreamIndex(stream.folder)
    index.refresh(None)
    kept: dict[tuple[int, int], tuple[str, bytes]] = {}
    for place in range(PARTITIONS):
        expected = stream.earliest[place]
        for segment, where in index.blocks(place, expected, stream.latest[place]):
            for row in block.rows(parse(segment, where)):
                assert row["offset"] == expected, f"offset {row['offset']} where {expected} belongs"
                assert by_name(row["topic"], PARTITIONS) == place
                kept[place, expected] = (row["topic"], row["payload"])
                expected += 1
        assert expected == stream.latest[place]
    return kept


def _acknowledged(
    memory: Memory, kept: dict[tuple[int, int], tuple[str, bytes]], earliest: list[int]
) -> None:
    count: dict[int, int] = {}
    empty = 0
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for topic, payload in kept.values():
        if topic == "k/will":
            continue
        if not payload:
            empty += 1
            continue
        number = number_of(payload)
        sent = memory.sent.get(number)
        assert sent is not None, f"message {number} was never sent"
        assert (sent.topic, sent.payload) == (topic, payload), f"message {number} is another one"
        count[number] = count.get(number, 0) + 1
        first.setdefault(topic, number)
        if count[number] == 1:
            assert number > last.get(topic, 0), (
                f"message {number} of {topic} is behind {last[topic]}"
            )
            last[topic] = number
    for number in memory.acked:
        sent = memory.sent[number]
        removed = earliest[by_name(sent.topic, PARTITIONS)] > 0
        if removed and number < first.get(sent.topic, number + 1):
            continue  # deleted by retention
        if sent.size:
            assert number in count, f"message {number} was acknowledged and is not in the stream"
    if any(earliest):
        empty += len(memory.sent)  # it is unknown how many were deleted
    missing = sum(not memory.sent[number].size for number in memory.acked) - empty
    assert missing <= 0, f"{missing} empty messages were acknowledged and are not in the stream"
    for number, times in count.items():
        assert times == 1 or memory.sent[number].qos == 1, (
            f"message {number} of QoS 2 is there twice"
        )


def cut_and_check(
    recording: Recording, cuts: int, seed: int, first: int = 0, most: int = 5
) -> Report:
    """Cut the power at `cuts` points in a recording, and check each cut."""
    return cut(recording, check, cuts, seed, first=first, most=most)


def run_program(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with the packages in `folder` ahead of the installed ones."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
