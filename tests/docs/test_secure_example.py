"""Test that examples/secure works as its page says. Clients use certificates, tokens and passwords over TLS, and all
others are refused.
"""

import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme
from hookmq.cli import main
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Auth, Connect, Disconnect
from hookmq.mqtt.properties import Properties
from hookmq_testing import AsyncioClient, LoopThread
from pages import blocks
from recording import V5, V311, Client
from serving import Served, serving
from tokens import token
from workspace import ROOT

pytestmark = pytest.mark.slow

P = TypeVar("P")

FOLDER = ROOT / "examples" / "secure"
FILES = ("hookmq.yaml", "acl.yaml", "devices.yaml", "users.yaml")
LISTENERS = ("devices", "gateways", "apps", "people", "metrics")
PASSWORD = "correct horse"
VERSIONS = [pytest.param(V311, id="3.1.1"), pytest.param(V5, id="5")]


class Plant:
    """The broker of the example, its folder and its clients' certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served: Served
        self.secret = ""
        self._authority = trustme.CA()
        self._clients = trustme.CA()
        self._strangers = trustme.CA()

    def prepare(self) -> None:
        """Run the commands on the page, with certificates created here."""
        for name in FILES:
            shutil.copy(FOLDER / name, self.folder / name)
            (self.folder / name).chmod(0o600)
        server = self._authority.issue_cert("localhost", "127.0.0.1")
        server.private_key_pem.write_to_path(self.folder / "server.key")
        for number, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(self.folder / "server.pem", append=number > 0)
        self._clients.cert_pem.write_to_path(self.folder / "clients.pem")
        (self.folder / "ann.txt").write_text(PASSWORD + "\n")
        self.secret = "s" * 64
        (self.folder / "secret.txt").write_text(self.secret + "\n")
        users, words = str(self.folder / "users.yaml"), str(self.folder / "ann.txt")
        assert main(["passwd", "add", users, "ann", "--password-file", words]) == 0

    def tls(self, name: str = "", strange: bool = False) -> ssl.SSLContext:
        """Return a TLS context for a client with the certificate of `name`. If `strange` is true, an untrusted
        authority issued the certificate.
        """
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        if name:
            authority = self._strangers if strange else self._clients
            authority.issue_cert(common_name=name).configure_cert(context)
        return context

    def token(self, sub: str, **claims: Any) -> str:
        """Return a token with the audience "plant"."""
        return token({"sub": sub, "aud": "plant", **claims}, key=self.secret).decode()

    def gateway(self, sub: str, **claims: Any) -> str:
        """Return a token with the audience "gateways"."""
        return self.token(sub, aud="gateways", **claims)

    def client(
        self, listener: str, client_id: str, version: Any = V5, cert: str = "", **more: Any
    ) -> Client:
        """Return a client for `listener`."""
        return Client(
            self.served.ports[listener], client_id, version, tls=self.tls(cert), host="localhost", **more
        )  # fmt: skip

    def refused(self, listener: str, client_id: str, version: Any = V5, **more: Any) -> int:
        """Assert that a connection is refused. Return the code of CONNACK."""
        client = self.client(listener, client_id, version, **more)
        code, _ = client.connect()
        client.paho.loop_stop()
        assert code
        return code

    def write(self, name: str, old: str, new: str) -> None:
        """Change a file and make the broker reload it."""
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1
        other = self.folder / "new"
        other.write_text(text.replace(old, new))
        other.chmod(0o600)
        other.replace(path)

    def metrics(self) -> str:
        """Return the metrics page."""
        url = f"http://127.0.0.1:{self.served.ports['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    made = Plant(tmp_path)
    made.prepare()
    anywhere = [
        w for n in range(len(LISTENERS)) for w in ("-o", f"listeners[{n}].bind=127.0.0.1:0")
    ]
    with serving("-c", "hookmq.yaml", *anywhere, "-o", "log.level=debug", cwd=tmp_path) as served:
        made.served = served
        yield made


def test_the_page_shows_the_files() -> None:
    shown = {block.file: block.text for block in blocks(FOLDER / "README.md") if block.file}
    for name in FILES:
        assert shown[name] == (FOLDER / name).read_text(), name


def test_the_certificates_of_the_page(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl")
    [script] = [
        b.text for b in blocks(FOLDER / "README.md") if b.language == "sh" and "openssl" in b.text
    ]
    done = subprocess.run(
        ["bash", "-e"], input=script, cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, authority in (("meter7", "clients"), ("gateway1", "clients"), ("server", "servers")):
        ssl.create_default_context(cafile=tmp_path / f"{authority}.pem")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        )
        command = [openssl, "verify", "-CAfile", f"{authority}.pem", f"{name}.pem"]
        verified = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_the_example_permits_its_rules_and_nothing_else(plant: Plant, version: Any) -> None:
    five = version == V5
    wrong, no = 0x86, 0x87  # paho's codes for return codes 4 and 5 of MQTT 3.1.1
    # who may connect
    for name in ("meter9", "nobody"):
        assert plant.refused("devices", name, version, cert=name) == wrong
    assert plant.refused("gateways", "g", version, cert="gateway1") == wrong
    other = plant.gateway("gateway2", site="north")
    code = plant.refused(
        "gateways", "g", version, cert="gateway1", username="gateway2", password=other
    )
    assert code == no
    board = plant.token("board", groups=["dashboards"])
    assert plant.refused("apps", "other", version, username="u", password=board) == no
    assert plant.refused("apps", "board", version, username="ann", password=PASSWORD) == wrong
    assert plant.refused("people", "ann", version, username="ann", password=board) == wrong
    assert plant.refused("people", "m", version, username="meter7", password="x") == wrong
    for certificate, strange in (("", False), ("meter7", True)):
        with pytest.raises((ssl.SSLError, OSError)):
            _handshake(plant, certificate, strange)
    # what they may do
    gateway = plant.gateway("gateway1", site="north")
    denied = 0x87 if five else 0x80
    with (
        plant.client("devices", "meter7", version, cert="meter7") as meter,
        plant.client(
            "gateways", "gw", version, cert="gateway1", username="x", password=gateway
        ) as gate,
        plant.client("apps", "board", version, username="u", password=board) as app,
        plant.client("people", "ann", version, username="ann", password=PASSWORD) as ann,
    ):
        assert meter.subscribe("plant/meter7/commands/#", 1) == 1
        assert app.subscribe("plant/+/data/#", 1) == 1
        assert gate.subscribe("site/north/#", 1) == 1
        for client, filters in (
            (meter, ("plant/+/commands/#", "plant/meter8/commands/#", "plant/meter7/data/#", "#")),
            (app, ("plant/#", "$share/g/plant/#", "plant/+/commands/#", "site/north/#")),
            (gate, ("site/+/#", "site/south/#", "plant/+/data/#")),
            (ann, ("plant/#", "plant/+/safety/#", "site/north/#", "$SYS/#")),
        ):
            for filter in filters:
                assert client.subscribe(filter, 1) == denied, filter
        if five:
            for client, topics in (
                (
                    meter,
                    ("plant/meter8/data/flow", "plant/meter7/commands/a", "plant/meter7/safety/x"),
                ),
                (app, ("plant/meter7/data/flow", "plant/meter7/commands/a")),
                (gate, ("site/south/a", "plant/gateway1/data/a")),
                (ann, ("plant/meter7/data/flow", "plant/meter7/safety/x")),
            ):
                for topic in topics:
                    assert client.publish(topic, b"no", 1) == 0x87, topic
            assert meter.publish("plant/meter7/data/flow", b"no", 1, True) == 0x87
            # paho sends PUBREL for a message that PUBREC refused, and gets "packet identifier not found".
            assert ann.publish("plant/meter7/commands/a", b"no", 2) == 0x92
        assert meter.publish("plant/meter7/data/flow", b"12", 1) == 0
        assert app.message().payload == b"12"
        assert ann.publish("plant/meter7/commands/valve", b"open", 1) == 0
        assert meter.message().payload == b"open"
        assert gate.publish("site/north/a", b"1", 1) == 0
        assert gate.message().payload == b"1"
        for client in (meter, gate, app, ann):
            assert client.messages.empty()


def test_a_name_is_nobody_elses_by_another_way_in(plant: Plant) -> None:
    """A client cannot use another client's identity through another listener. A gateway's token fails without the
    gateway's certificate, and a user of another listener cannot use the gateway's client id.
    """
    gateway = plant.gateway("gateway1", site="north")
    gate = plant.client(
        "gateways", "gateway1", cert="gateway1", username="x", password=gateway, expiry=600
    )
    with gate:
        assert gate.subscribe("site/north/#", 1) == 1
        assert plant.refused("apps", "gateway1", username="gateway1", password=gateway) == 0x87
        # A token that is valid for `apps` does not give access to the other client's session either.
        app = plant.token("gateway1", groups=["dashboards"])
        assert plant.refused("apps", "gateway1", username="gateway1", password=app) == 0x85
        assert plant.refused("people", "gateway1", username="ann", password=PASSWORD) == 0x85
        assert gate.publish("site/north/a", b"1", 1) == 0
        assert gate.message().payload == b"1"


def _handshake(plant: Plant, certificate: str, strange: bool) -> None:
    context = plant.tls(certificate, strange)
    address = ("127.0.0.1", plant.served.ports["devices"])
    with (
        socket.create_connection(address, 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        # In TLS 1.3, the server refuses the client's certificate only after the client has finished its part of the
        # handshake.
        sock.sendall(encode(Connect("meter7", 5, True, 0), 5))
        if not sock.recv(100):
            raise OSError("closed")


def renew(thread: LoopThread, client: AsyncioClient, data: str, kind: type[P]) -> P:
    """Send AUTH with another token, although paho has no method for this. Return the response, a packet of type
    `kind`."""
    given = Properties(authentication_method="JWT", authentication_data=data.encode())
    thread.call(client.send, Auth(0x19, given))
    return thread.run(client.expect(kind))


def test_a_token_ends_and_one_that_is_renewed_does_not(plant: Plant) -> None:
    now = int(time.time())
    soon = now - 3  # and then five seconds for clocks that differ
    groups = ["dashboards"]
    data = plant.token("board", exp=soon, groups=groups).encode()
    board = AsyncioClient("board", authentication_method="JWT", authentication_data=data)
    ending = plant.client(
        "apps", "b2", username="u", password=plant.token("b2", exp=soon + 1, groups=groups)
    )
    with LoopThread() as thread:
        port = plant.served.ports["apps"]
        thread.run(board.connect(port, ssl=plant.tls(), server_hostname="localhost"))
        assert ending.connect()[0] == 0
        longer = plant.token("board", exp=now + 600, groups=groups)
        assert renew(thread, board, longer, Auth).code == 0
        assert ending.ends.get(timeout=60) == 0xA0
        ending.paho.loop_stop()
        thread.run(board.ping())
        refused = renew(thread, board, plant.token("somebody else"), Disconnect)
        assert refused.code == 0x87
        thread.run(board.wait_closed())


def test_rules_that_change_end_what_was_granted(plant: Plant) -> None:
    board = plant.token("board", groups=["dashboards"])
    meter = plant.client("devices", "meter7", cert="meter7")
    app = plant.client("apps", "board", username="u", password=board)
    try:
        assert meter.connect()[0] == 0
        assert app.connect()[0] == 0
        assert app.subscribe("plant/+/data/#", 1) == 1
        plant.write("acl.yaml", "group: [dashboards, operators]", "group: [operators]")
        plant.served.wait_for("acl.loaded")
        assert app.ends.get(timeout=60) == 0x87
        with plant.client("apps", "board", username="u", password=board) as again:
            assert again.subscribe("plant/+/data/#", 1) == 0x87
            assert meter.publish("plant/meter7/data/flow", b"x", 1) == 0x10
        plant.write("devices.yaml", "  meter7:\n", "  meter6:\n")
        assert meter.ends.get(timeout=60) == 0x87
    finally:
        meter.paho.loop_stop()
        app.paho.loop_stop()


def test_clients_above_their_rate_are_slowed_or_refused(plant: Plant) -> None:
    board = plant.token("board", groups=["dashboards"])
    with (
        plant.client("apps", "board", username="u", password=board) as app,
        plant.client("devices", "meter7", cert="meter7") as meter,
    ):
        assert app.subscribe("plant/+/data/#", 1) == 1
        sent: list[bytes] = []
        # A slow machine may send 70 messages without exceeding the rate limit. Then double the number of messages.
        while 'outcome="throttled"' not in plant.metrics():
            more = [b"%d" % number for number in range(len(sent), 2 * len(sent) + 70)]
            for payload in more:
                meter.post("plant/meter7/data/flow", payload, 1)
            assert app.payloads(len(more)) == more
            sent += more
        assert [meter.pubacks.get(timeout=60)[1] for _ in sent] == [0] * len(sent)
        codes = [meter.publish("plant/meter7/alarms", b"", 1) for _ in range(7)]
        assert codes == [0x10] * 5 + [0x97] * 2
    while plant.served.wait_for("ratelimit.limited")["limit"] != "ratelimit/alarms":
        pass
    log = json.dumps(plant.served.log)
    for secret in (PASSWORD, plant.secret, board, *board.split(".")[1:]):
        assert secret not in log
