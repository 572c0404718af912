"""Connections to real servers: authentication, TLS, servers that do not answer, and reconnecting."""

import asyncio
import base64
import hashlib
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from threading import Event, Thread, current_thread
from time import monotonic, time
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from engine_contract import Calls, appended
from hookmq.plugin import ConfigError
from hookmq_cluster import nats_client
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.engine import Appended, Entry
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_connection import NatsOptions, address_of
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_testing import make_plugin
from hookmq_toolkit.tls_client import TlsConfig
from nats_bench import NatsBench
from nats_server import NatsCluster
from ports import free_port


@contextmanager
def serving(more: str, count: int = 1) -> Iterator[NatsCluster]:
    """Run a server with `more` in its configuration."""
    cluster = NatsCluster(count, more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def works(urls: tuple[str, ...], **options: Any) -> None:
    """Open an engine and commit with it."""
    bench = NatsBench(urls, "works", 1)
    engine = bench.new(**options)
    bench.engines.append(engine)
    bench.loop.run_until_complete(engine.open(10.0))
    appended(bench, engine, Entry(bench.prefix + "lane.a", b""))
    bench.close()
    for secret in ("password", "token", "nkey_seed", "credentials"):
        assert str(options.get(secret) or "no secret") not in repr(bench.logged)


def refused(urls: tuple[str, ...], seconds: float = 0.6, **options: Any) -> str:
    """Return why an engine cannot be opened."""
    bench = NatsBench(urls, "works", 1)
    with pytest.raises(EngineError) as error:
        bench.loop.run_until_complete(bench.new(**options).open(seconds))
    bench.close()
    return str(error.value)


def seed(prefix: int, name: str = "mine") -> str:
    """Return the seed of an NKey, which depends on `name`."""
    text: bytes = nkeys.encode_seed(hashlib.sha256(name.encode()).digest(), prefix)
    return text.decode()


def test_user_and_password() -> None:
    with serving('authorization { user: "me", password: "s3cret" }') as server:
        works(server.urls, user="me", password="s3cret")
        begin = monotonic()
        for options in ({}, {"user": "me", "password": "other"}, {"token": "s3cret"}):
            text = refused(server.urls, 30.0, **options)
            assert "Authorization Violation" in text
            assert server.urls[0] in text
            assert "s3cret" not in text
        assert monotonic() - begin < 20.0


def test_token() -> None:
    with serving('authorization { token: "s3cret" }') as server:
        works(server.urls, token="s3cret")
        assert "Authorization Violation" in refused(server.urls, token="other")


def test_nkey() -> None:
    mine, other = (seed(nkeys.PREFIX_BYTE_USER, name) for name in ("mine", "other"))
    public = nkeys.from_seed(bytearray(mine.encode())).public_key.decode()
    with serving(f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        works(server.urls, nkey_seed=mine + "\n")
        assert "Authorization Violation" in refused(server.urls, nkey_seed=other)
        assert "nkey_seed: not the seed" in refused(server.urls, nkey_seed="SUNONSENSE")


def _jwt(subject: str, name: str, kind: dict[str, Any], signer: Any) -> str:
    def part(fields: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")

    claims = {
        "jti": hashlib.sha256(subject.encode()).hexdigest(),
        "iat": int(time()),
        "iss": signer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": kind,
    }
    text = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(signer.sign(text.encode())).decode().rstrip('=')}"


def test_credentials() -> None:
    user_seed = seed(nkeys.PREFIX_BYTE_USER)
    operator, account, system = (
        nkeys.from_seed(bytearray(seed(kind, name).encode()))
        for kind, name in (
            (nkeys.PREFIX_BYTE_OPERATOR, "operator"),
            (nkeys.PREFIX_BYTE_ACCOUNT, "account"),
            (nkeys.PREFIX_BYTE_ACCOUNT, "system"),
        )
    )
    user = nkeys.from_seed(bytearray(user_seed.encode()))
    own = operator.public_key.decode()
    operator_jwt = _jwt(own, "op", {"type": "operator", "version": 2}, operator)
    limits = {
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    }  # fmt: skip
    account_name = account.public_key.decode()
    account_jwt = _jwt(
        account_name, "acc", {"type": "account", "version": 2, "limits": limits}, operator
    )
    user_jwt = _jwt(
        user.public_key.decode(),
        "me",
        {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1},
        account,
    )
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed}\n------END USER NKEY SEED------\n"
    )
    system_name = system.public_key.decode()
    none = {**limits, "mem_storage": 0, "disk_storage": 0, "streams": 0, "consumer": 0}
    system_jwt = _jwt(
        system_name, "sys", {"type": "account", "version": 2, "limits": none}, operator
    )
    more = (
        f"operator: {operator_jwt}\nresolver: MEMORY\nsystem_account: {system_name}\n"
        f"resolver_preload: {{ {account_name}: {account_jwt}, {system_name}: {system_jwt} }}\n"
    )
    with serving(more) as server:
        works(server.urls, credentials=credentials)
        other = credentials.replace(user_seed, seed(nkeys.PREFIX_BYTE_USER, "other"))
        assert "Authorization Violation" in refused(server.urls, credentials=other)
        assert "expected a JWT and a seed" in refused(server.urls, credentials="nonsense")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return a certificate authority."""
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the TLS block of a configuration."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return (
        f'cert_file: "{folder}/cert.pem", key_file: "{folder}/key.pem", ca_file: "{folder}/ca.pem"'
    )


def context(authority: trustme.CA) -> ssl.SSLContext:
    """Return a context that trusts `authority`."""
    found = ssl.create_default_context()
    authority.configure_trust(found)
    return found


def test_tls(authority: trustme.CA, tls_files: str) -> None:
    with serving(f"tls {{ {tls_files} }}") as server:
        works(server.urls, tls=context(authority))
        works((server.urls[0].replace("nats:", "tls:"),), tls=context(authority))
        assert "certificate not trusted" in refused(server.urls)
        assert "certificate not trusted" in refused(server.urls, tls=ssl.create_default_context())
        wrong = refused(server.urls, tls=context(authority), tls_hostname="other.example")
        assert "wrong host" in wrong


def test_tls_with_a_client_certificate(authority: trustme.CA, tls_files: str) -> None:
    mine = context(authority)
    authority.issue_cert("client").configure_cert(mine)
    with serving(f"tls {{ {tls_files}, verify: true }}") as server:
        works(server.urls, tls=mine)
        assert refused(server.urls, tls=context(authority))


def test_renewed_files_are_used_for_the_next_connection(
    authority: trustme.CA, tls_files: str, tmp_path: Path
) -> None:
    own, trusted = tmp_path / "own.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)

    def write(issuer: trustme.CA) -> None:
        issuer.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(own)

    write(authority)
    with serving(f"tls {{ {tls_files}, verify: true }}") as server:
        bench = NatsBench(server.urls, "hookmq", 1)
        config = ClusterConfig(
            node="a", servers=server.urls, replicas=1, tls=TlsConfig(trusted, own)
        )
        plugin = make_plugin(ClusterPlugin, config, use="cluster").plugin
        assert isinstance(plugin, ClusterPlugin)
        engine = plugin.make_engine(bench.runtime())
        assert isinstance(engine, NatsEngine)
        bench.engines.append(engine)
        bench.loop.run_until_complete(engine.open(10.0))
        [node] = server.nodes
        node.kill()
        write(trustme.CA())  # stands for a certificate that has ended
        node.start()
        calls = Calls(bench)
        engine.commit([Entry(bench.prefix + "lane.a", b"x")], calls, "key")
        bench.wait(lambda: "UNKNOWN_CA" in repr(bench.logged))
        own.write_text("not a certificate")
        bench.wait(lambda: f"{own} cannot be used" in repr(bench.logged))
        assert calls.all == []
        write(authority)
        assert isinstance(calls.one(20.0), Appended)
        bench.close()


def test_files_that_cannot_be_used_are_refused_at_once(
    authority: trustme.CA, tmp_path: Path
) -> None:
    pipe, own, key = tmp_path / "pipe", tmp_path / "own.pem", tmp_path / "key.pem"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=r"credentials: .*not a regular file"):
        make_plugin(ClusterPlugin, ClusterConfig(credentials=pipe), use="cluster")
    authority.issue_cert("client").cert_chain_pems[0].write_to_path(own)
    secret = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret")
    )
    key.write_bytes(secret)
    tls = TlsConfig(cert_file=own, key_file=key)
    with pytest.raises(ConfigError, match=r"key\.pem cannot be used: "):
        make_plugin(ClusterPlugin, ClusterConfig(tls=tls), use="cluster")


def test_files_that_block_do_not_prevent_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "READ", 0.2)
    with serving("") as server:
        bench = NatsBench(server.urls, "blocked", 1)
        options = NatsOptions(server.urls)
        blocked = Event()
        calls: list[Thread] = []

        def reread() -> NatsOptions:
            calls.append(current_thread())
            blocked.wait()
            return options

        engine = NatsEngine(
            options, bench.stream, bench.prefix + ">", bench.runtime(), 1, reread=reread
        )
        bench.engines.append(engine)
        bench.loop.run_until_complete(engine.open(10.0))
        [node] = server.nodes
        node.kill()
        bench.wait(lambda: "files could not be read within 0.2 s" in repr(bench.logged))
        node.start()
        appended(bench, engine, Entry(bench.prefix + "lane.a", b""))
        assert [one.daemon for one in calls] == [True]
        blocked.set()
        bench.close()


def test_a_server_that_closes_each_connection_is_not_asked_without_a_pause() -> None:
    with serving("") as server:
        bench = NatsBench(server.urls, "closing", 1)
        host, port = address_of(server.urls[0])
        accepted: list[int] = []

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(1)
            to, out = await asyncio.open_connection(host, port)
            writer.write(await to.readline())
            out.write(await reader.readuntil(b"PING\r\n"))
            writer.write(await to.readuntil(b"PONG\r\n"))
            await writer.drain()
            for one in (writer, out):
                one.close()

        proxy = bench.loop.run_until_complete(asyncio.start_server(pass_on, "127.0.0.1", 0))
        engine = bench.new((f"nats://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",))
        opening = bench.loop.create_task(engine.open(inf))
        bench.pass_time(2.0)
        assert 1 < len(accepted) < 12
        opening.cancel()
        proxy.close()
        bench.close()


def test_tls_first(authority: trustme.CA, tls_files: str) -> None:
    with serving(f"tls {{ {tls_files}, handshake_first: true }}") as server:
        works(server.urls, tls=context(authority), tls_first=True)
        assert "timeout" in refused(server.urls, tls=context(authority), connect_timeout=0.5)


def test_tls_is_never_left_out(authority: trustme.CA) -> None:
    with serving('authorization { user: "me", password: "s3cret" }') as server:
        for urls, tls in (
            (server.urls, context(authority)),
            ((server.urls[0].replace("nats:", "tls:"),), None),
        ):
            text = refused(urls, user="me", password="s3cret", tls=tls)
            assert "does not offer TLS" in text


def test_servers_that_cannot_be_used() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = (f"nats://127.0.0.1:{port}", f"nats://127.0.0.1:{silent.getsockname()[1]}")
        text = refused(urls, connect_timeout=0.5)
        assert f"{urls[0]}: connection refused" in text
        assert f"{urls[1]}: timeout" in text
    with serving("") as server:
        # One of several servers is enough.
        works((f"nats://127.0.0.1:{port}", *server.urls))


def test_a_server_that_starts_later_is_waited_for() -> None:
    cluster = NatsCluster(1)
    try:
        bench = NatsBench(cluster.urls, "later", 1)
        engine = bench.new()
        opening = bench.loop.create_task(engine.open(30.0))
        bench.pass_time(0.5)
        assert not opening.done()
        cluster.start()
        bench.loop.run_until_complete(opening)
        bench.engines.append(engine)
        appended(bench, engine, Entry(bench.prefix + "lane.a", b""))
        bench.close()
    finally:
        cluster.close()


def test_servers_are_waited_for_without_an_end() -> None:
    cluster = NatsCluster(3)
    first, *others = cluster.nodes
    try:
        bench = NatsBench(cluster.urls, "waits", 3)
        engine = bench.new()
        opening = bench.loop.create_task(engine.open(inf))
        bench.wait(lambda: bench.logged, 30.0)
        [(level, event, fields)] = bench.logged
        assert (level, event) == ("warning", "cluster.nats_unreachable")
        assert fields["servers"] == dict.fromkeys(cluster.urls, "connection refused")
        first.start()
        first.wait()
        # The stream can be created only with a majority of the servers.
        bench.wait(lambda: "cluster.stream_awaited" in [one[1] for one in bench.logged], 30.0)
        assert not opening.done()
        for one in others:
            one.start()
        bench.loop.run_until_complete(opening)
        assert ("cluster.stream_created", {"stream": bench.stream, "replicas": 3}) in [
            one[1:] for one in bench.logged
        ]
        bench.engines.append(engine)
        bench.close()
    finally:
        cluster.close()


def test_a_refusal_ends_the_wait_at_once() -> None:
    lost = f"nats://127.0.0.1:{free_port()}"
    with serving("authorization { token: s3cret }\nmax_payload: 32768") as server:
        for token, words in (("other", "Authorization Violation"), ("s3cret", "max_payload is")):
            begin = monotonic()
            text = refused((lost, *server.urls), inf, token=token)
            assert words in text
            assert f"{lost}: connection refused" in text or lost not in text
            assert monotonic() - begin < 10.0


def test_an_account_without_jetstream_is_refused_at_once() -> None:
    users = "users: [{ user: me, password: s3cret }]"
    with serving(f"accounts {{ A {{ {users} }} }}") as server:
        text = refused(server.urls, inf, user="me", password="s3cret")
        assert "JetStream is not enabled for the account" in text


def test_a_server_with_too_many_connections_is_waited_for() -> None:
    with serving("max_connections: 1") as server:
        bench = NatsBench(server.urls, "full", 1)
        first, second = bench.new(), bench.new()
        bench.loop.run_until_complete(first.open(10.0))
        opening = bench.loop.create_task(second.open(inf))
        bench.wait(lambda: "maximum connections" in repr(bench.logged))
        assert not opening.done()
        first.close(lambda: None)
        bench.loop.run_until_complete(opening)
        bench.engines.append(second)
        bench.close()


def test_a_server_that_is_something_else() -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    bench = NatsBench(("nats://127.0.0.1:1",), "works", 1)
    server = bench.loop.run_until_complete(asyncio.start_server(talk, "127.0.0.1", 0))
    engine = bench.new((f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
    with pytest.raises(EngineError, match="malformed line"):
        bench.loop.run_until_complete(engine.open(0.5))
    server.close()
    bench.close()


def test_a_server_without_jetstream_and_one_with_small_messages(tmp_path: Path) -> None:
    with serving("max_payload: 32768") as server:
        assert "max_payload is 32768; at least 524288 is required" in refused(server.urls)
    cluster = NatsCluster(1)
    node = cluster.nodes[0]
    text = node._file.read_text()
    node._file.write_text(
        "".join(f"{one}\n" for one in text.splitlines() if "jetstream" not in one)
    )
    try:
        cluster.start()
        assert "JetStream is not enabled on this server" in refused(cluster.urls)
    finally:
        cluster.close()


def test_a_server_that_hangs_is_noticed_and_one_that_comes_back_is_used() -> None:
    with serving("") as server:
        bench = NatsBench(server.urls, "hang", 1)
        engine = bench.engine()
        told: list[bool] = []
        engine.on_connection(told.append)
        node = server.nodes[0]
        node.pause()
        calls = Calls(bench)
        engine.commit([Entry(bench.prefix + "lane.a", b"1")], calls, "key")
        bench.wait(lambda: told == [False], 15.0)
        assert not engine.connected()
        node.resume()
        assert isinstance(calls.one(20.0), Appended)
        assert told == [False, True]
        node.kill()
        bench.wait(lambda: told == [False, True, False])
        bench.pass_time(0.5)
        assert any(event == "cluster.nats_unreachable" for _, event, _ in bench.logged)
        server.start()
        bench.wait(lambda: told == [False, True, False, True])
        appended(bench, engine, Entry(bench.prefix + "lane.a", b"2"))
        bench.close()


def test_options_that_are_wrong() -> None:
    for server in (
        "",
        "127.0.0.1:4222",
        "http://a",
        "nats://",
        "nats://a:x",
        "nats://a/b",
        "nats://a?b",
    ):
        with pytest.raises(EngineError, match="servers: "):
            NatsOptions((server,))
    with pytest.raises(EngineError, match="servers: at least one"):
        NatsOptions(())
    with pytest.raises(EngineError, match="use user and password") as error:
        NatsOptions(("nats://me:s3cret@a:1",))
    assert "s3cret" not in str(error.value)
    with pytest.raises(EngineError, match="only one of user and token"):
        NatsOptions(("nats://a",), user="a", token="b")
    with pytest.raises(EngineError, match="password: a user is required"):
        NatsOptions(("nats://a",), password="b")
    with pytest.raises(EngineError, match="tls_first: tls is required"):
        NatsOptions(("nats://a",), tls_first=True)
    assert address_of("nats://a") == ("a", 4222)
    assert address_of("tls://[::1]:5") == ("::1", 5)
