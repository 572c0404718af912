"""``python -m bench.durable``: durable publishes a second through a whole broker.

One publisher of QoS 1 keeps WINDOW messages unacknowledged; one session that is offline has subscribed, so that each
message is a record on the disk before its PUBACK leaves. The CPU time is that of the broker's process and of its
writer's; it travels between machines better than the rate, which is the disk's as well.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
broker: {{receive_maximum: 65535, max_queue_bytes: 64GiB}}
session: {{queue_messages: 1000000000, queue_bytes: 64GiB}}
plugins: {plugins}
"""
PLUGIN = '[{{use: storage, config: {{path: "{path}", durability: {durability}}}}}]'


def packet(first: int, body: bytes) -> bytes:
    """A control packet."""
    size = len(body)
    length = b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | 128 if size else low])
        if not size:
            return bytes([first]) + length + body


def connect(client_id: bytes, clean: bool) -> bytes:
    """CONNECT of MQTT 3.1.1."""
    flags = 2 if clean else 0
    head = b"\x00\x04MQTT\x04" + bytes([flags]) + b"\x00\x00"
    return packet(0x10, head + len(client_id).to_bytes(2, "big") + client_id)


def cpu(pid: int) -> float:
    """Seconds of CPU time of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def measure(port: int, window: int, payload: int, seconds: float) -> tuple[int, list[float]]:
    """How many were acknowledged in `seconds`, and how long each tenth or so of them took."""
    offline = socket.create_connection(("127.0.0.1", port))
    offline.sendall(connect(b"offline", False) + packet(0x82, b"\0\1\0\7bench/#\1"))
    answers = b""
    while len(answers) < 9:
        answers += offline.recv(100)
    offline.sendall(b"\xe0\0")
    offline.close()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(connect(b"pub", True))
    assert connection.recv(4) == b"\x20\x02\0\0"
    data = bytes(payload)
    publishes = [
        packet(0x32, b"\0\7bench/t" + number.to_bytes(2, "big") + data) for number in range(65536)
    ]
    sent = acked = 0
    times: dict[int, float] = {}
    taken: list[float] = []
    buffer = b""
    began = time.perf_counter()
    end = began + seconds
    while True:
        now = time.perf_counter()
        if now >= end:
            break
        room = window - (sent - acked)
        if room >= max(1, window // 4):
            batch = [publishes[(sent + n) % 65535 + 1] for n in range(room)]
            times[sent] = now
            sent += room
            connection.sendall(b"".join(batch))
        buffer += connection.recv(1 << 16)
        whole = len(buffer) // 4
        buffer = buffer[whole * 4 :]
        now = time.perf_counter()
        answered = [number for number in times if number < acked + whole]
        taken += [now - times.pop(number) for number in answered]
        acked += whole
    connection.close()
    return acked, sorted(taken)


def run(durability: str, window: int, payload: int, seconds: float) -> None:
    """One row."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".durable-") as name:
        folder = Path(name)
        plugins = PLUGIN.format(path=folder / "data", durability=durability)
        (folder / "c.yaml").write_text(CONFIG.format(plugins=plugins))
        broker = subprocess.Popen(
            [sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", "-c",
             str(folder / "c.yaml")],
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert broker.stderr is not None
        for line in broker.stderr:
            entry = json.loads(line)
            if entry["event"] == "node.started":
                port = int(entry["listeners"]["tcp"].rpartition(":")[2])
                break
        else:
            raise SystemExit("the broker did not start")
        writers = children(broker.pid)
        before = cpu(broker.pid), sum(map(cpu, writers))
        acked, taken = measure(port, window, payload, seconds)
        main, writer = cpu(broker.pid) - before[0], sum(map(cpu, writers)) - before[1]
        broker.send_signal(signal.SIGTERM)
        broker.communicate()
        p50, p99 = (taken[int(len(taken) * part)] * 1e3 if taken else 0.0 for part in (0.5, 0.99))
        print(
            f"| {durability} | {window} | {acked / seconds:,.0f} | {p50:.2f} | {p99:.2f}"
            f" | {main / max(1, acked) * 1e6:.1f} | {writer / max(1, acked) * 1e6:.1f} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.durable", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--windows", default="1,50,1000")
    parser.add_argument("--durability", default="memory,os,group")
    options = parser.parse_args()
    print("| durability | window | acknowledged/s | p50 ms | p99 ms | broker us | writer us |")
    print("|---|---|---|---|---|---|---|")
    for durability in options.durability.split(","):
        for window in map(int, options.windows.split(",")):
            run(durability, window, options.payload, options.seconds)


if __name__ == "__main__":
    main()
