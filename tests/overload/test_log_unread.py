"""A broker whose log nobody reads keeps serving clients even when the pipe is full."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

from pressure.client import connect
from serving import HOOKMQ, WAIT

CONFIG = """\
version: 1
listeners: [{name: tcp, bind: "127.0.0.1:0"}]
auth: {default: allow}
log: {level: debug, format: json}
plugins: []
"""
CLIENTS = 600


async def come_and_go(port: int) -> None:
    for number in range(CLIENTS):
        client = await connect(port, f"client-{number}")
        client.disconnect()
        await client.wait_closed()


def test_clients_are_served_while_the_log_is_unread(tmp_path: Path) -> None:
    file = tmp_path / "hookmq.yaml"
    file.write_text(CONFIG)
    command = [*HOOKMQ, "serve", "-c", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        entry: dict[str, Any] = {"event": ""}
        while entry["event"] != "node.started":
            entry = json.loads(process.stderr.readline())
        (address,) = entry["listeners"].values()
        asyncio.run(come_and_go(int(address.rpartition(":")[2])))
        # Now read the log. The broker waits only a moment for its reader when it stops, so drain the pipe first.
        last = f'"client_id": "client-{CLIENTS - 1}"'
        lines: list[str] = []
        while not (lines and "client.disconnected" in lines[-1] and last in lines[-1]):
            lines.append(process.stderr.readline())
            assert lines[-1], "the log ended"
        process.terminate()
        lines += process.stderr.read().splitlines()
        assert process.wait(WAIT) == 0
    finally:
        process.kill()
        process.wait(WAIT)
        process.stderr.close()
    told = [json.loads(line) for line in lines]
    gone = [entry for entry in told if entry["event"] == "client.disconnected"]
    assert [entry["client_id"] for entry in gone] == [f"client-{n}" for n in range(CLIENTS)]
    assert sum(map(len, lines)) > 2 * 65536  # more than a pipe holds
