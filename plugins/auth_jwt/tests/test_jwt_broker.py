"""Test a broker process with a key server and real clients over TCP."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from hookmq_testing import AsyncioClient
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from serving import Served, serving
from tokens import KeyServer, jwk, jwks, key_server_beside, pem, token

ACL = {"publish": ["dev/%c/#"], "subscribe": ["dev/%c/#"]}


@contextmanager
def running(folder: Path, hooks: Any = None, **config: Any) -> Iterator[Served]:
    (folder / "hookmq.yaml").write_text(
        json.dumps(
            {
                "version": 1,
                "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
                "plugins": [{"use": "auth_jwt", "hooks": hooks or {}, "config": config}],
            }
        )
    )
    with serving("-c", str(folder / "hookmq.yaml"), "-o", "log.level=debug") as served:
        yield served


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    with key_server_beside() as server:
        server.body = jwks(jwk("RSA 2048", "k0"))
        yield server


def client(
    served: Served, name: str, password: bytes, version: Any = ProtocolVersion.V5, **options: Any
) -> aiomqtt.Client:
    return aiomqtt.Client(
        "127.0.0.1", served.ports["tcp"], identifier=name, protocol=version, username="u", password=password.decode(),
        timeout=60, **options,
    )  # fmt: skip


def rsa(kid: str = "k0", number: int = 0, **claims: Any) -> bytes:
    return token(claims, "RS256", number=number, header={"kid": kid})


async def test_clients_with_tokens(tmp_path: Path, keys: KeyServer) -> None:
    expired = rsa(exp=1000)
    forged = rsa(number=1)
    with running(tmp_path, jwks_url=keys.url, required={"sub": "${clientid}"}) as served:
        for version in (ProtocolVersion.V311, ProtocolVersion.V5):
            good = rsa(sub="pump", acl=ACL)
            async with client(served, "pump", good, version) as one:
                await one.subscribe("dev/pump/#", 1)
                await one.publish("dev/pump/a", b"x", 1)
                async with asyncio.timeout(60):
                    message = await anext(aiter(one.messages))
                assert (str(message.topic), message.payload) == ("dev/pump/a", b"x")
            for name, data in (("pump", expired), ("pump", forged), ("other", good)):
                with pytest.raises(aiomqtt.MqttError):
                    async with client(served, name, data, version):
                        pass
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.AuthenticationMethod = "JWT"
        properties.AuthenticationData = rsa(sub="by auth")
        async with client(served, "by auth", b"", properties=properties):
            pass
        served.stop()
    log = json.dumps(served.log)
    assert "jwt.refused" in log
    assert "by auth" in log
    for data in (good, expired, forged):
        for part in data.decode().split(".")[1:]:
            assert part not in log
            assert part[:24] not in log


async def test_keys_that_rotate_and_a_server_that_dies(tmp_path: Path, keys: KeyServer) -> None:
    settings = {"refresh": "1h", "max_age": "1d", "miss_interval": "1s"}
    with running(tmp_path, jwks_url=keys.url, jwks=settings) as served:
        async with client(served, "a", rsa(acl=ACL)):
            keys.body = jwks(jwk("RSA 2048", "k1", 1))
            async with asyncio.timeout(60):
                while True:  # a fetch for an unknown key happens once a second
                    try:
                        async with client(served, "b", rsa("k1", 1)):
                            break
                    except aiomqtt.MqttError:
                        continue
            with pytest.raises(aiomqtt.MqttError):
                async with client(served, "c", rsa("k0")):
                    pass
            keys.body = b"garbage"
            served.signal(signal.SIGHUP)
            assert served.wait_for("jwt.fetch_failed")["keys_kept"] == 1
            async with client(served, "d", rsa("k1", 1)):
                pass


async def hello(served: Served, name: str, data: bytes) -> AsyncioClient:
    """Open a connection and send CONNECT."""
    made = AsyncioClient(name, username="u", password=data)
    await made.open(served.ports["tcp"])
    return made


async def code(made: AsyncioClient) -> int:
    """Wait for CONNACK and return its code."""
    assert await made.until(lambda: made.connack is not None or made.closed)
    assert made.connack is not None
    return made.connack.code


@pytest.mark.parametrize("others", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_a_slow_server_stalls_only_who_needs_it(
    tmp_path: Path, keys: KeyServer, others: int
) -> None:
    settings = {"miss_interval": "1s", "timeout": "20s", "refresh": "1s", "max_age": "1h"}
    hooks = {"on_connect": {"timeout": "30s"}}
    with running(tmp_path, hooks, jwks_url=keys.url, jwks=settings) as served:
        keys.body = jwks(jwk("RSA 2048", "k0"), jwk("RSA 2048", "k1", 1))
        keys.answer = keys.slow
        asked = keys.asked
        while keys.asked == asked:  # the next fetch, which hangs
            probe = await hello(served, "probe", rsa())
            assert await code(probe) == 0
            probe.drop()
        stalled = await hello(served, "stalled", rsa("k1", 1))
        stall = asyncio.create_task(code(stalled))
        good = rsa()
        clients = [stalled]
        for begin in range(0, others, 100):
            found = await asyncio.gather(
                *(hello(served, f"c{begin + n}", good) for n in range(100))
            )
            assert await asyncio.gather(*map(code, found)) == [0] * 100
            clients += found
        assert not stall.done()
        keys.release()
        async with asyncio.timeout(60):
            assert await stall == 0
        for one in clients:
            one.drop()
            await one.wait_closed()  # otherwise, the stopping broker waits for them


async def test_a_key_file_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(pem("RSA 2048"))
    with running(tmp_path, pem=str(path), watch="0s", on_key_removed="disconnect") as served:
        one = await hello(served, "a", rsa())
        assert await code(one) == 0
        path.write_text(pem("RSA 2048", 1))
        served.signal(signal.SIGHUP)
        served.wait_for("jwt.key_withdrawn")
        await one.expect_disconnect(0x87)
        async with client(served, "a", rsa("k0", 1)):
            pass


async def test_another_secret_after_a_reload(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    (tmp_path / "secret").write_text(old)
    config: Any = {"secret": {"$file": str(tmp_path / "secret")}, "on_key_removed": "disconnect"}
    with running(tmp_path, **config) as served:
        one = await hello(served, "a", token(key=old))
        assert await code(one) == 0
        (tmp_path / "secret").write_text(new)
        served.signal(signal.SIGHUP)
        served.wait_for("jwt.key_withdrawn")
        await one.expect_disconnect(0x87)
        async with client(served, "b", token(key=new)):
            pass
    assert old not in json.dumps(served.log)
    assert new not in json.dumps(served.log)
