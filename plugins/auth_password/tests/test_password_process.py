"""Test the plugin with a real broker, real clients and a real mosquitto."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiomqtt
import pytest
from hookmq_auth_password.book import New, delete, load, put
from hookmq_testing import AsyncioClient, LoopThread, run_command
from hookmq_toolkit.passwords.hashes import Argon2, make
from passwords import MOSQUITTO
from serving import Served, serving

pytestmark = pytest.mark.slow


@contextmanager
def broker(path: Path, extra: str = "", format: str = "yaml") -> Iterator[Served]:
    """Run ``hookmq serve`` with the users in a file."""
    config = path.parent / "hookmq.yaml"
    config.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\nauthz: {default: allow}\n"
        f"plugins: [{{use: auth_password, config: {{path: '{path}', format: {format}, "
        f"reload_interval: 100ms{extra}}}}}]\n"
    )
    with serving("-c", str(config)) as served:
        yield served


async def code(port: int, username: str | None, password: str | None) -> int:
    """Return the reason code that aiomqtt receives over MQTT 5."""
    try:
        async with aiomqtt.Client(
            "127.0.0.1", port, username=username, password=password, protocol=aiomqtt.ProtocolVersion.V5, timeout=60
        ):  # fmt: skip
            return 0
    except aiomqtt.MqttCodeError as error:
        value = getattr(error.rc, "value", error.rc)
        assert isinstance(value, int)
        return value


async def ended(port: int, username: str, password: str, by: Callable[[], object]) -> bool:
    """Return whether the broker closes a connection after `by` is called."""
    try:
        async with aiomqtt.Client(
            "127.0.0.1", port, username=username, password=password
        ) as client:
            await client.subscribe("a")
            by()
            async with asyncio.timeout(60):
                async for _ in client.messages:
                    pass
    except aiomqtt.MqttError:
        return True
    return False


async def test_clients_come_and_go_with_the_file(file: Path) -> None:
    with broker(file) as served:
        port = served.ports["tcp"]
        for _ in range(2):
            assert await code(port, "alice", "secret") == 0
        assert await code(port, "alice", "wrong") == 0x86
        assert await code(port, "nobody", "secret") == 0x86
        assert await code(port, None, None) == 0x87
        assert await ended(port, "bob", "hunter2", lambda: delete(file, "yaml", "bob"))
        assert await code(port, "bob", "hunter2") == 0x86
        await asyncio.to_thread(file.write_text, "broken")
        assert await asyncio.to_thread(served.wait_for, "auth_password.reload_failed")
        assert await code(port, "alice", "secret") == 0
        new = file.with_name("new")
        put(new, "yaml", [New("carl", make(b"x", "yaml", Argon2()))])
        os.replace(new, file)
        served.signal(signal.SIGHUP)
        assert await asyncio.to_thread(served.wait_for, "auth_password.reloaded")
        assert await code(port, "carl", "x") == 0
        text = "".join(str(entry) for entry in served.log)
    for secret in ("hunter2", "$argon2id"):
        assert secret not in text


async def test_old_hashes_are_made_strong(file: Path) -> None:
    with broker(file, ", upgrade: true, argon2: {memory: 2MiB, passes: 1, lanes: 1}") as served:
        assert await code(served.ports["tcp"], "alice", "secret") == 0
        assert await asyncio.to_thread(served.wait_for, "auth_password.upgraded")
    users = {user.name: user for user in load(file, "yaml").users}
    assert users["alice"].hash is not None
    assert users["alice"].hash.cost == (2048, 1, 1)


async def test_a_file_of_mosquitto(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(MOSQUITTO)
    path.chmod(0o600)
    with broker(path, format="mosquitto") as served:
        for name, password in (("alice", "secret"), ("bob", "hunter2")):
            assert await code(served.ports["tcp"], name, password) == 0
            assert await code(served.ports["tcp"], name, password + "x") == 0x86


@pytest.mark.parametrize("text", ["", "version: 1\nusers:\n  a: {hash: x}\n", None])
def test_a_file_that_is_not_right(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` and `serve` refuse an invalid file with the same error."""
    path, config = tmp_path / "users.yaml", tmp_path / "hookmq.yaml"
    if text is not None:
        path.write_text(text)
    config.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\n"
        f"plugins: [{{use: auth_password, config: {{path: '{path}'}}}}]\n"
    )
    for command in ("check", "serve"):
        assert run_command([command, "-c", str(config)]) == 3
        assert str(path) in capsys.readouterr().err


def need(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin")
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def test_mosquitto_reads_what_we_write_and_we_what_it_writes(tmp_path: Path) -> None:
    """HookMQ and mosquitto can use the same file, no matter which of them wrote it."""
    program, tool = need("mosquitto"), need("mosquitto_passwd")
    path = tmp_path / "passwd"
    put(path, "mosquitto", [New("ours", make(b"secret", "mosquitto", Argon2()))])
    for kind in ("sha512", "sha512-pbkdf2"):
        subprocess.run(
            [tool, "-H", kind, "-b", str(path), kind, "hunter2"], check=True, capture_output=True
        )
    assert {user.name: user.hash.scheme for user in load(path, "mosquitto").users if user.hash} == {
        "ours": "mosquitto-pbkdf2", "sha512": "mosquitto-sha512", "sha512-pbkdf2": "mosquitto-pbkdf2",
    }  # fmt: skip
    path.chmod(0o644)  # it gives up root before it reads
    tmp_path.chmod(0o755)
    place = tmp_path / "socket"
    config = tmp_path / "mosquitto.conf"
    config.write_text(
        f"listener 0 {place}\nallow_anonymous false\npassword_file {path}\nuser root\n"
    )
    running = subprocess.Popen(
        [program, "-c", str(config), "-v"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stderr is not None
        for line in running.stderr:
            assert "Error" not in line, line
            if "running" in line:
                break
        given = (
            ("ours", b"secret"), ("ours", b"wrong"), ("sha512", b"hunter2"), ("sha512-pbkdf2", b"hunter2"),
        )  # fmt: skip
        with LoopThread() as thread:
            answers = [thread.run(ask(place, name, password)) for name, password in given]
        assert answers == [0, 5, 0, 0]
    finally:
        running.terminate()
        running.communicate(timeout=60)


async def ask(path: Path, name: str, password: bytes) -> int:
    """Connect an MQTT 3.1.1 client over a Unix socket. Return the CONNACK's code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        client = await AsyncioClient("c", 4, username=name, password=password).connect(
            sock=connection, expect=None
        )
        client.drop()
        await client.wait_closed()
        assert client.connack is not None
        return client.connack.code


# a flood

OK, WRONG, UNAVAILABLE = 0, 4, 3
WORKERS = 1000


async def connect(
    port: int, client_id: str, name: str, password: bytes, host: str
) -> tuple[int, AsyncioClient]:
    """Connect an MQTT 3.1.1 client from the address `host`. Return the CONNACK's code and the client."""
    client = AsyncioClient(client_id, 4, username=name, password=password)
    await client.connect(port, expect=None, local_addr=(host, 0))
    assert client.connack is not None
    return client.connack.code, client


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.slow
async def test_a_flood_of_wrong_passwords_while_a_thousand_others_work(tmp_path: Path) -> None:
    """A flood of wrong passwords from one address does not affect a thousand other clients.

    Connected clients carry on, returning clients are accepted from the cache, and new clients from other addresses are
    served in turn.
    """
    path = tmp_path / "users.yaml"
    hash = make(b"secret", "yaml", Argon2(8 << 20, 4, 1))
    put(
        path,
        "yaml",
        [New("alice", hash), New("bob", make(b"secret", "yaml", Argon2(8 << 20, 4, 1)))],
    )
    with broker(path, ", queue: 16, argon2: {memory: 8MiB, passes: 4, lanes: 1}") as served:
        port = served.ports["tcp"]
        inside: list[AsyncioClient] = []
        for number in range(WORKERS):
            answer, client = await connect(port, f"w{number}", "alice", b"secret", "127.0.0.1")
            assert answer == OK
            inside.append(client)
        answers: dict[int, int] = {WRONG: 0, UNAVAILABLE: 0}
        working = True

        async def flood(number: int) -> None:
            count = 0
            while working:
                count += 1
                password = b"%d-%d" % (number, count)
                answer, _ = await connect(port, f"f{number}", "bob", password, "127.0.0.2")
                answers[answer] += 1

        async def work(client: AsyncioClient) -> None:
            for _ in range(3):
                await client.publish("t", b"x", 1, expect=0)

        flooding = [asyncio.create_task(flood(number)) for number in range(60)]
        try:
            await asyncio.gather(*map(work, inside))
            for number in range(20):
                answer, client = await connect(port, f"b{number}", "alice", b"secret", "127.0.0.1")
                assert answer == OK
                client.disconnect()
            answer, client = await connect(port, "new", "bob", b"secret", "127.0.0.3")
            assert answer == OK
            client.disconnect()
            await asyncio.gather(*map(work, inside))
        finally:
            working = False
            await asyncio.gather(*flooding)
        for client in inside:
            client.disconnect()
            await client.wait_closed()
        assert answers[WRONG] > 0
        assert answers[UNAVAILABLE] > 0, "the queue is bounded"
