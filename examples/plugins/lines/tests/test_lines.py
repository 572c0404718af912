"""Test the line gateway with real sockets: commands, load in both directions, and removal of the plugin while devices
are connected.
"""

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest
from hookmq_example_lines import LinesPlugin
from hookmq_testing import AsyncioClient
from hookmq_testing.contracts import PluginContract
from serving import Served, serving

PLUGIN = """
  - use: example_lines
    config: {port: 0, mount_point: "devices/"}
"""
CONFIG = """
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
session: {{queue_messages: 100000}}
plugins: {plugins}
"""


class TestContract(PluginContract):
    kind = LinesPlugin
    use = "example_lines"
    configs = ({}, {"host": "::1"})
    bad_configs = ({"host": ""}, {"port": 70000}, {"ports": 1})


class Device:
    """A device, with the lines and messages that it received."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> "Device":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, line: str) -> str:
        self.writer.write(line.encode() + b"\n")
        return await self.line()

    async def line(self) -> str:
        async with asyncio.timeout(60):
            return (await self.reader.readline()).decode().rstrip("\n")

    async def drop(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def port_of(broker: Served) -> int:
    address = next(entry for entry in broker.log if entry["event"] == "lines.opened")["address"]
    return int(address.rpartition(":")[2])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hookmq.yaml"
    path.write_text(CONFIG.format(plugins=PLUGIN))
    return path


async def test_each_command_has_its_answer(config: Path) -> None:
    with serving("-c", str(config)) as broker:
        watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
        await watcher.subscribe("devices/#", 1)
        device = await Device.open(port_of(broker))
        assert await device.ask("PUB a b") == "ERR 0x82 expected CONNECT"
        assert await device.ask("WILL m7/state offline") == "OK"
        assert await device.ask("CONNECT m7 alice secret") == "OK"
        assert await device.ask("SUB m7/+") == "OK"
        assert (await device.ask("SUB m7/#/x")).startswith("ERR 0x8F")
        assert (await device.ask("PUB m7/# x")).startswith("ERR 0x82 cannot publish")
        assert await device.ask("DANCE") == "ERR 0x82 unknown command"
        assert await device.ask("PUB state on and on") == "OK"
        message = await watcher.message()
        assert (message.topic, message.payload) == ("devices/state", b"on and on")
        await watcher.publish("devices/m7/commands", b"restart", 1)
        assert await device.line() == "MSG m7/commands restart"
        await device.drop()
        await watcher.message()  # its own command
        message = await watcher.message()
        assert (message.topic, message.payload) == ("devices/m7/state", b"offline")
        watcher.disconnect()


async def test_a_device_that_says_quit_leaves_no_will(config: Path) -> None:
    with serving("-c", str(config)) as broker:
        watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
        await watcher.subscribe("devices/#", 1)
        for word in ("QUIT", ""):
            device = await Device.open(port_of(broker))
            await device.ask(f"WILL gone {word or 'lost'}")
            assert await device.ask(f"CONNECT one{word}") == "OK"
            device.writer.write(word.encode() + b"\n")
            if word:
                assert await device.line() == "", "the gateway closes the connection"
            await device.drop()
        assert (await watcher.message()).payload == b"lost"
        watcher.disconnect()


async def test_thousands_of_messages_in_both_directions(config: Path) -> None:
    """Ten devices write faster than they read. No message is lost."""
    count, devices = 500, 10
    with serving("-c", str(config)) as broker:
        watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
        await watcher.subscribe("devices/out/#", 1)

        async def run(number: int) -> list[str]:
            device = await Device.open(port_of(broker))
            assert await device.ask(f"CONNECT d{number}") == "OK"
            assert await device.ask(f"SUB in/{number}") == "OK"
            device.writer.writelines(
                b"PUB %b/%d %d\n" % (way, number, n)
                for n in range(count)
                for way in (b"out", b"in")
            )
            lines = [await device.line() for _ in range(3 * count)]
            await device.drop()
            return lines

        answers = await asyncio.gather(*(run(number) for number in range(devices)))
        for number, lines in enumerate(answers):
            assert lines.count("OK") == 2 * count
            received = [line for line in lines if line != "OK"]
            assert received == [f"MSG in/{number} {n}" for n in range(count)]
        seen: dict[str, list[int]] = {}
        for _ in range(count * devices):
            message = await watcher.message()
            seen.setdefault(message.topic, []).append(int(message.payload))
        assert set(map(tuple, seen.values())) == {tuple(range(count))}
        assert len(seen) == devices
        watcher.disconnect()


async def test_the_plugin_is_removed_while_devices_are_on(config: Path) -> None:
    """If the plugin is removed while publishes are unanswered, all wills are published."""
    with serving("-c", str(config)) as broker:
        watcher = await AsyncioClient("watcher").connect(broker.ports["tcp"])
        await watcher.subscribe("devices/gone/#", 1)
        devices = [await Device.open(port_of(broker)) for _ in range(20)]
        for number, device in enumerate(devices):
            await device.ask(f"WILL gone/{number} x")
            assert await device.ask(f"CONNECT d{number}") == "OK"
            device.writer.writelines(b"PUB out %d\n" % n for n in range(200))
        await asyncio.to_thread(config.write_text, CONFIG.format(plugins="[]"))
        broker.signal(signal.SIGHUP)
        topics = {(await watcher.message()).topic for _ in devices}
        assert topics == {f"devices/gone/{number}" for number in range(20)}
        for device in devices:
            await device.drop()
        watcher.disconnect()
