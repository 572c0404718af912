"""Test one broker with all access plugins and the services they query.

A slow service delays only its own client, an unavailable service grants nothing, and no secret
appears in the output.
"""

import asyncio
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hookmq_testing import AsyncioClient
from passwords import cheap
from recording import V5, V311, Client
from serving import HOOKMQ, Served, serving
from tokens import KeyServer, jwk, jwks, key_server_beside, token

pytestmark = pytest.mark.slow

PASSWORD = "correct-horse-battery"
WEB_PASSWORD = "tango-uniform-seven"
WRONG = "wrong-staple-guess"
HEADER = "Bearer auth-header-0451"
SIGNING = "signing-secret-" * 5
EXPORTER = "exporter-token-7781"
HASH = cheap(PASSWORD.encode())
RULES = "rules:\n  - {allow: [publish, subscribe], topic: [open/#, http/#]}\n"


class Answers(KeyServer):
    """A key server that also answers authentication requests."""

    mood = "well"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer according to the path."""
        self.asked += 1
        if request.path.startswith("/jwks"):
            return web.Response(body=self.body)
        asked = await request.json()
        if self.mood == "broken":
            # The response reveals everything that was sent, and the expected header.
            return web.Response(status=500, text=json.dumps([asked, HEADER]))
        if self.mood == "nonsense":
            return web.Response(text=f"{asked} {HEADER}")
        assert request.headers["Authorization"] == HEADER
        if asked["clientid"] == "slow":
            await self.released.wait()
        if request.path == "/may":
            denied = asked["topic"].startswith("http/")
            return web.json_response({"result": "deny" if denied else "ignore"})
        if not asked["username"].startswith("web"):
            return web.json_response({"result": "ignore"})
        right = asked["password"] == WEB_PASSWORD
        return web.json_response({"result": "allow"} if right else {"result": "deny", "code": 0x86})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    monkeypatch.setattr("tokens.KeyServer", Answers)
    with key_server_beside() as server:
        assert isinstance(server, Answers)
        server.body = jwks(jwk("RSA 2048", "k0"))
        yield server


def configure(folder: Path, url: str) -> Path:
    """Write a configuration with all access plugins."""
    base = url.rpartition("/")[0]
    headers = {"Authorization": {"$env": "AUTH_HEADER"}}
    (folder / "users.yaml").write_text(f"version: 1\nusers:\n  alice: {{hash: '{HASH}'}}\n")
    (folder / "users.yaml").chmod(0o600)
    (folder / "acl.yaml").write_text(RULES)
    (folder / "secret.txt").write_text(SIGNING + "\n")
    keys = [{"jwks_url": url}, {"secret": {"$file": "secret.txt"}, "kid": "hs"}]
    plugins: list[dict[str, Any]] = [
        {"use": "ratelimit", "config": {
            "limits": [
                {"what": "connections", "per": "ip", "rate": "100000/s"},
                {"what": "auth_failures", "per": "ip", "rate": "1000/s"},
                {"what": "publishes", "per": "client", "rate": "1000/s"},
            ],
            "ban": {"after": "1000/s"},
        }},
        {"use": "auth_password", "config": {
            "path": "users.yaml", "unknown": "ignore", "anonymous": "ignore", "reload_interval": "100ms",
        }},
        {"use": "auth_jwt", "config": {"keys": keys, "optional": True, "jwks": {"timeout": "20s"}}},
        {"use": "auth_http", "hooks": {"on_connect": {"timeout": "290s"}}, "config": {
            "authenticate": {"url": f"{base}/in", "headers": headers},
            "authorize": {"url": f"{base}/may", "headers": headers},
            "timeout": "280s", "retries": 0, "breaker_failures": 1000, "cache": 0, "negative_cache": 0,
        }},
        {"use": "acl_file", "config": {"path": "acl.yaml", "reload_interval": "100ms"}},
    ]  # fmt: skip
    path = folder / "hookmq.yaml"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "listeners": [
                    {"name": "tcp", "bind": "127.0.0.1:0"},
                    {
                        "name": "http",
                        "type": "http",
                        "bind": "127.0.0.1:0",
                        "http": {"token": EXPORTER},
                    },
                ],
                "auth": {"default": "deny"},
                "authz": {"default": "deny"},
                "log": {"level": "debug"},
                "plugins": plugins,
            }
        )
    )
    return path


ENVIRON = {"AUTH_HEADER": HEADER}


def bearer(sub: str, **more: Any) -> str:
    """Return a valid token."""
    return token({"sub": sub, **more}, "RS256", header={"kid": "k0"}).decode()


def ended(served: Served) -> str:
    """Stop the broker and return all its output. Expected errors are ignored."""
    assert served.stop() == 0
    with pytest.raises(AssertionError, match="ended without"):
        served.wait_for("to the end of it")
    said = json.dumps(served.log) + "\n".join(served.errors)
    served.log[:] = [entry for entry in served.log if entry["level"] != "error"]
    return said


# -- slow


async def _connect(port: int, name: str, username: str, password: str) -> AsyncioClient:
    """Connect, and send CONNECT."""
    client = AsyncioClient(name, username=username, password=password.encode())
    await client.open(port)
    return client


async def _accepted(client: AsyncioClient) -> bool:
    """Wait for CONNACK. Return whether it accepts the client."""
    assert await client.until(lambda: client.connack is not None or client.closed)
    return client.connected


@pytest.mark.parametrize("others", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_slow_service_stalls_only_its_own_client(
    service: Answers, tmp_path: Path, others: int
) -> None:
    config = configure(tmp_path, service.url)

    async def all_of_them(port: int) -> None:
        good = bearer("by token")
        ways = (("alice", PASSWORD), ("web", WEB_PASSWORD), ("u", good))
        slow = await _connect(port, "slow", "web", WEB_PASSWORD)
        stalled = asyncio.create_task(_accepted(slow))
        gate = asyncio.Semaphore(100)
        clients = [slow]

        async def other(number: int) -> None:
            async with gate:
                client = await _connect(port, f"c{number}", *ways[number % 3])
                assert await _accepted(client)
                await asyncio.gather(client.publish("open/x", b"x", 1), client.ping())
                clients.append(client)

        async with asyncio.timeout(240):
            await asyncio.gather(*(other(number) for number in range(others)))
            assert not stalled.done()
            service.release()
            assert await stalled
        for client in clients:
            client.drop()
            await client.wait_closed()

    with serving("-c", str(config), cwd=tmp_path, environ=ENVIRON) as served:
        asyncio.run(all_of_them(served.ports["tcp"]))


# -- dead


def _refused(port: int, version: Any, username: str, password: str) -> int:
    client = Client(port, "new", version, username=username, password=password)
    code, _ = client.connect()
    client.paho.loop_stop()
    assert code
    return code


@pytest.mark.parametrize("mood", ["dead", "broken", "nonsense"])
def test_services_that_die_open_nothing(
    tmp_path: Path, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokens.KeyServer", Answers)
    with key_server_beside() as service:
        assert isinstance(service, Answers)
        service.body = jwks(jwk("RSA 2048", "k0"))
        config = configure(tmp_path, service.url)
        broker = serving("-c", str(config), cwd=tmp_path, environ=ENVIRON)
        served = broker.__enter__()
        port = served.ports["tcp"]
        there = Client(port, "there", V5, username="alice", password=PASSWORD)
        assert there.connect()[0] == 0
        assert there.publish("open/a", b"", 1) == 0x10
        assert there.publish("http/a", b"", 1) == 0x87
        service.mood = mood
    try:
        # The verdict for a topic that only acl_file decided is cached for the connection.
        assert there.publish("open/a", b"", 1) == 0x10
        for topic in ("open/b", "http/a", "http/b"):
            assert there.publish(topic, b"", 1) == 0x83
        assert there.subscribe("open/#", 1) == 0x83
        for version in (V311, V5):
            for username, password in (
                ("alice", PASSWORD),
                ("web", WEB_PASSWORD),
                ("u", bearer("x")),
            ):
                assert _refused(port, version, username, password) == 0x88
        assert there.ends.empty()
    finally:
        there.disconnect()
        ended(served)
        broker.__exit__(None, None, None)


def test_a_start_without_services(tmp_path: Path) -> None:
    config = configure(tmp_path, "http://127.0.0.1:1/jwks.json")
    with serving("-c", str(config), cwd=tmp_path, environ=ENVIRON) as served:
        port = served.ports["tcp"]
        for username, password in (("alice", PASSWORD), ("web", WEB_PASSWORD), ("u", bearer("x"))):
            assert _refused(port, V5, username, password) == 0x88
        ended(served)


# -- secrets


def _cli(folder: Path, *words: str) -> str:
    import os

    done = subprocess.run(
        [*HOOKMQ, *words], cwd=folder, env={**os.environ, **ENVIRON}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_no_secret_is_told_anywhere(service: Answers, tmp_path: Path) -> None:
    config = configure(tmp_path, service.url)
    expired = bearer("late", exp=1000)
    forged = token({"sub": "eve"}, "RS256", number=1, header={"kid": "k0"}).decode()
    unknown = token({"sub": "eve"}, "RS256", number=1, header={"kid": "k9"}).decode()
    symmetric = token({"sub": "hs"}, key=SIGNING, header={"kid": "hs"}).decode()
    good = bearer("good", acl={"publish": ["open/#"]})
    with serving("-c", str(config), cwd=tmp_path, environ=ENVIRON) as served:
        port = served.ports["tcp"]

        def attempts() -> None:
            for version in (V311, V5):
                for username, password in (
                    ("alice", PASSWORD), ("alice", WRONG), ("web", WEB_PASSWORD), ("web", WRONG), ("u", good),
                    ("u", expired),
                    ("u", forged), ("u", unknown), ("u", symmetric), (WRONG, ""), ("u", good[:-4]), ("u", good + "x"),
                ):  # fmt: skip
                    client = Client(port, "c", version, username=username, password=password)
                    code, _ = client.connect()
                    if code == 0:
                        for topic in ("open/a", "shut/a", "http/a"):
                            client.publish(topic, b"", 1)
                        client.subscribe("#", 1)
                        client.disconnect()
                    else:
                        client.paho.loop_stop()

        attempts()
        for mood in ("broken", "nonsense"):
            service.mood = mood
            attempts()
        service.mood = "well"
        # Make the files invalid in the part that contains the secret.
        (tmp_path / "users.yaml").write_text(f"version: 1\nusers:\n  alice: {{hsh: '{HASH}'}}\n")
        served.wait_for("auth_password.reload_failed")
        (tmp_path / "secret.txt").write_text(SIGNING[:20])
        served.signal(signal.SIGHUP)
        served.wait_for("node.reload_failed")
        (tmp_path / "secret.txt").write_text(SIGNING + "\n")
        (tmp_path / "users.yaml").write_text(f"version: 1\nusers:\n  alice: {{hash: '{HASH}'}}\n")
        request = urllib.request.Request(
            f"http://127.0.0.1:{served.ports['http']}/metrics",
            headers={"Authorization": f"Bearer {EXPORTER}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            metrics = answer.read().decode()
        said = ended(served)
    shown = _cli(tmp_path, "config", "show", "-c", "hookmq.yaml")
    checked = _cli(tmp_path, "check", "-c", "hookmq.yaml")
    explained = _cli(tmp_path, "ratelimit", "explain", "-c", "hookmq.yaml", "--user", "alice")
    keys = _cli(tmp_path, "jwt", "keys", "-c", "hookmq.yaml")
    for event in ("jwt.refused", "auth.failed", "authz.denied", "client.connected"):
        assert event in said, event
    assert "hookmq_jwt_refused_total" in metrics
    assert "auth_http" in shown
    secrets = [
        PASSWORD,
        WEB_PASSWORD,
        WRONG,
        HEADER,
        HEADER.split()[1],
        SIGNING,
        SIGNING[:20],
        EXPORTER,
        HASH,
    ]
    secrets += [HASH.rpartition("$")[2], HASH.split("$")[-2]]
    for one in (expired, forged, unknown, symmetric, good):
        secrets += [one, *one.split(".")[1:], one.split(".")[1][:24]]
    for name, text in (
        ("log", said), ("metrics", metrics), ("config show", shown), ("check", checked), ("explain", explained),
        ("jwt keys", keys),
    ):  # fmt: skip
        for secret in secrets:
            # A user name is not secret: a password sent as the user name appears in the log.
            if secret == WRONG and name == "log":
                continue
            assert secret not in text, (name, secret[:8])
