"""A read API in this process that can lose, truncate, refuse and forget data. A real broker does not do that on
demand.
"""

import json
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

Record = dict[str, Any]
START = 1_700_000_000_000_000


def record(topic: str, payload: bytes, **more: Any) -> Record:
    """Return a record in the form that blocks contain. Omitted fields have their most common values."""
    return {
        "timestamp": START,
        "topic": topic,
        "payload": payload,
        "qos": 1,
        "retain": 0,
        "client_id": "device",
        "content_type": None,
        "response_topic": None,
        "correlation_data": None,
        "headers": [],
        **more,
    }


TEXT = {
    2: "topic", 3: "payload", 6: "client_id", 7: "content_type", 8: "response_topic", 9: "correlation_data",
}  # fmt: skip


def encode(
    partition: int,
    base: int,
    rows: Sequence[Record],
    *,
    columns: Sequence[str] = (),
    offsets: Sequence[int] | None = None,
    end: int | None = None,
) -> bytes:
    """Encode a block, as PROTOCOL.md of hookmq-spark-sink specifies. With ``offsets``, the block is sparse."""
    buffers: list[tuple[int, int, int, bytes]] = []

    def wanted(name: str) -> bool:
        return not columns or name in columns

    def text(column: int, role: int, values: Sequence[bytes]) -> None:
        ends = [0]
        for value in values:
            ends.append(ends[-1] + len(value))
        buffers.append((column, role, 0, struct.pack(f"<{len(ends)}i", *ends)))
        buffers.append((column, role + 1, 0, b"".join(values)))

    count = len(rows)
    if wanted("timestamp"):
        stamps = [row["timestamp"] for row in rows]
        buffers.append((1, 2, 0, struct.pack(f"<{count}q", *stamps)))
    for column, name in TEXT.items():
        values = [row[name] for row in rows]
        if not wanted(name) or (column > 5 and all(value is None for value in values)):
            continue
        nulls = sum(value is None for value in values)
        if nulls:
            bits = sum(1 << i for i, value in enumerate(values) if value is not None)
            buffers.append((column, 0, nulls, bits.to_bytes((count + 7) // 8, "little")))
        text(column, 1, [v.encode() if isinstance(v, str) else v or b"" for v in values])
    for column, name in ((4, "qos"), (5, "retain")):
        if wanted(name):
            buffers.append((column, 2, 0, bytes(row[name] for row in rows)))
    if wanted("headers") and any(row["headers"] for row in rows):
        ends = [0]
        for row in rows:
            ends.append(ends[-1] + len(row["headers"]))
        buffers.append((10, 1, 0, struct.pack(f"<{len(ends)}i", *ends)))
        text(10, 3, [key.encode() for row in rows for key, _ in row["headers"]])
        text(10, 5, [value for row in rows for _, value in row["headers"]])
    if offsets is not None:
        buffers.append((11, 2, 0, struct.pack(f"<{count}q", *offsets)))

    position = 64 + 24 * len(buffers)
    table, body = b"", b""
    for column, role, nulls, data in buffers:
        table += struct.pack("<HHIQQ", column, role, nulls, position + len(body), len(data))
        body += data + bytes(-len(data) % 8)
    tail = struct.pack(
        "<QHHIQQIIqq",
        position + len(body),
        1,
        len(buffers),
        partition,
        base,
        base + count if end is None else end,
        count,
        int(offsets is not None),
        0,
        0,
    )
    checked = tail + table + body
    return b"HqAB" + struct.pack("<I", crc32(checked)) + checked


@dataclass
class FakeLog:
    """A stream ``s`` with records by partition, and the faults for the next requests."""

    partitions: dict[int, list[Record]]
    log_id: str = "0" * 32
    earliest: dict[int, int] = field(default_factory=dict)
    token: str = ""
    block_rows: int = 100
    faults: list[Any] = field(default_factory=list)
    """The faults of the next requests.

    Each is a status, ``drop`` (no answer), an int below 0 (truncate the answer by that many bytes), bytes (the answer)
    or None (answer correctly).
    """
    asked: list[str] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The names of consumers, with their reports."""
    url: str = ""

    @property
    def options(self) -> dict[str, str]:
        """Return options for a reader of this stream that retries without waiting."""
        return {"url": self.url, "stream": "s", "fetchOffset.retryIntervalMs": "0"}

    def offsets(self, timestamp: int | None) -> dict[str, Any]:
        found: dict[str, dict[str, int | None]] = {}
        for p, rows in self.partitions.items():
            found[str(p)] = {"earliest": self.earliest.get(p, 0), "latest": len(rows)}
            if timestamp is not None:
                later = [o for o, row in enumerate(rows) if row["timestamp"] >= timestamp * 1000]
                found[str(p)]["at"] = later[0] if later else None
        return {"stream": "s", "log_id": self.log_id, "partitions": found}

    def answer(self, target: str, body: bytes) -> tuple[int, bytes]:
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        path = url.path.split("/")
        if path[3] != "s":
            return 404, _error("no_such_stream", f"no stream {path[3]}")
        if path[4] == "offsets":
            stamp = query.get("timestamp")
            return 200, json.dumps(self.offsets(None if stamp is None else int(stamp))).encode()
        if path[4] == "consumers" and path[6] == "report":
            self.reports.append((path[5], json.loads(body)))
            return 200, b"{}"
        if path[4] == "consumers":
            self.commits.append(json.loads(body))
            return 200, b"{}"
        return self.records(int(query["partition"]), int(query["start"]), int(query["end"]), query)

    def records(self, p: int, start: int, end: int, query: dict[str, str]) -> tuple[int, bytes]:
        rows, first = self.partitions[p], self.earliest.get(p, 0)
        facts = {"partition": p, "start": start, "end": end, "earliest": first, "latest": len(rows)}
        if query["log_id"] != self.log_id:
            return 409, _error("log_replaced", "another log", log_id=self.log_id)
        if start < first:
            return 410, _error("trimmed", "gone", **facts)
        if end > len(rows):
            return 416, _error("beyond_latest", "not yet", **facts)
        blocks = b""
        for base in range(start - start % self.block_rows, end, self.block_rows):
            part = rows[base : base + self.block_rows]
            blocks += encode(p, base, part, columns=query["columns"].split(","))
        return 200, blocks


def _error(code: str, message: str, **facts: Any) -> bytes:
    return json.dumps({"error": code, "message": message, **facts}).encode()


@contextmanager
def serving(log: FakeLog) -> Iterator[FakeLog]:
    """Serve a log on a port that the kernel chooses."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(b"")

        def do_POST(self) -> None:
            self.reply(self.rfile.read(int(self.headers["Content-Length"])))

        def reply(self, body: bytes) -> None:
            log.asked.append(self.path)
            fault: Any = log.faults.pop(0) if log.faults else None
            if fault == "drop":
                self.close_connection = True
                return
            refused = isinstance(fault, int) and fault > 0
            status, data = (0, b"") if refused else log.answer(self.path, body)
            if log.token and self.headers["Authorization"] != f"Bearer {log.token}":
                status, data = 401, _error("unauthorized", "no")
            if isinstance(fault, bytes):
                status, data = 200, fault
            elif refused:
                status, data = fault, _error("unavailable", "starting")
            cut: int = -fault if isinstance(fault, int) and fault < 0 else 0
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) - cut])
            self.close_connection = bool(cut)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    log.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield log
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
