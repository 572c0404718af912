"""Test the `mqtt` driver against mosquitto and HookMQ."""

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bridging import Client, properties_of
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import Driver, DriverContext, Record, Rejected, TargetUnavailable
from hookmq_sinks.drivers.mqtt import MqttDriver
from hookmq_sinks.mqtt.in_flight import InFlight, packet_id
from hookmq_sinks.testing import LOG_ID, DriverContract, make_batch, make_record
from mosquitto import Mosquitto
from ports import free_port
from serving import serving


class Contract(DriverContract):
    kind = MqttDriver
    protocol = "5"
    qos = 2
    folder: Path
    port: int

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "addresses": [f"127.0.0.1:{self.port}"], "broker": "here", "protocol": self.protocol,
            "qos": self.qos, "connect_timeout": "5s",
        }  # fmt: skip

    def make(self, slot: str = "test") -> Driver:
        context = DriverContext("test", slot, LOG_ID, folder=self.folder)
        return self.kind(bind_values(self.kind.Settings, self.target_settings()), context)

    def record(self, offset: int) -> Record:
        record = make_record(offset, topic=f"{self.prefix}/a")
        record.payload = record.id.encode()
        return record

    def poison(self, offset: int) -> Record:
        record = self.record(offset)
        record.topic = "a" * 70_000
        return record

    async def stored_ids(self) -> list[str]:
        # Nothing that was sent before this message is on its way when it arrives.
        await asyncio.to_thread(self.listener.publish, f"{self.prefix}/settled", "", 2)
        for _ in range(1000):
            if any(one.topic.endswith("settled") for one in self.listener.messages):
                break
            await asyncio.sleep(0.01)
        messages = self.listener.messages
        messages[:] = [one for one in messages if not one.topic.endswith("settled")]
        return self.listener.payloads

    listener: Client
    prefix = "plant"


class TestMosquitto(Contract):
    @pytest.fixture(autouse=True)
    def _remote(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.mosquitto = Mosquitto(tmp_path / "remote", "max_inflight_messages 100")
        self.port = self.mosquitto.port
        self.listener = Client(self.port, "listener", "#")
        yield
        self.listener.close()
        self.mosquitto.stop()

    async def stop_target(self) -> None:
        await asyncio.to_thread(self.mosquitto.stop)

    async def start_target(self) -> None:
        await asyncio.to_thread(self.mosquitto.start)
        for _ in range(1000):
            if self.listener.client.is_connected():
                break
            await asyncio.sleep(0.01)


class AtMostQos1(DriverContract):
    """Runs the driver contract at QoS 0 and 1, where the engine's own cursor decides where to continue."""

    async def test_it_holds_the_position(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        driver, position = await self._opened()
        await driver.close()
        assert position is None


class TestMosquittoWithMqtt311(AtMostQos1, TestMosquitto):
    protocol = "3.1.1"
    qos = 1


class TestMosquittoAtQos2WithMqtt311(TestMosquitto):
    protocol = "3.1.1"


@pytest.fixture(scope="module")
def hookmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    options = ["auth.default=allow", "authz.default=allow"]
    path = tmp_path_factory.mktemp("hookmq") / "hookmq.yaml"
    path.write_text("version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\n")
    with serving("-c", str(path), *(word for one in options for word in ("-o", one))) as served:
        yield served.ports["tcp"]


@pytest.mark.slow
class TestHookMQ(Contract):
    @pytest.fixture(autouse=True)
    def _remote(self, tmp_path: Path, hookmq: int) -> Iterator[None]:
        self.folder = tmp_path
        self.port = hookmq
        self.prefix = tmp_path.name
        self.listener = Client(hookmq, f"listener-{self.prefix}", f"{self.prefix}/#")
        yield
        self.listener.close()

    async def test_a_target_that_is_down_is_unavailable_and_comes_back(self) -> None:
        pytest.skip("other tests share the broker")


@pytest.mark.slow
class TestHookMQWithMqtt311(AtMostQos1, TestHookMQ):
    protocol = "3.1.1"
    qos = 1


# one remote broker for the tests of single features ------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path / "remote", "max_inflight_messages 100")
    yield server
    server.stop()


def driver(folder: Path, *ports: int, slot: str = "test", **target: Any) -> MqttDriver:
    given = {
        "addresses": [f"127.0.0.1:{one}" for one in ports], "broker": "here", "connect_timeout": "2s", **target
    }  # fmt: skip
    context = DriverContext("test", slot, LOG_ID, folder=folder)
    return MqttDriver(bind_values(MqttDriver.Settings, given), context)


def record(offset: int, **fields: Any) -> Record:
    return make_record(offset, str(offset).encode(), **fields)


async def arrived(client: Client, count: int) -> list[str]:
    for _ in range(1000):
        if len(client.messages) >= count:
            break
        await asyncio.sleep(0.01)
    return client.payloads


async def reason_of(one: MqttDriver) -> TargetUnavailable:
    with pytest.raises(TargetUnavailable) as caught:
        await one.open()
    await one.close()
    return caught.value


async def test_properties_prefixes_and_the_path_are_passed_on(
    tmp_path: Path, remote: Mosquitto
) -> None:
    far = Client(remote.port, "far", "hq/#")
    rule = {"pattern": "#", "qos": 1, "local_prefix": "plant/", "remote_prefix": "hq/north/"}
    one = driver(tmp_path, remote.port, rules=[rule])
    await one.open()
    full = record(
        1, retain=True, content_type="text/plain", response_topic="r", correlation_data=b"c", text_payload=True,
        user_properties=(("a", "b"), ("hookmq-bridge-path", "first")), expires_at=4e9,
    )  # fmt: skip
    await one.write(make_batch([full, record(2)]))
    await arrived(far, 2)
    first, second = far.messages
    properties = properties_of(first)
    assert (first.topic, first.qos) == ("hq/north/a", 1)
    assert (properties.ContentType, properties.ResponseTopic) == ("text/plain", "r")
    assert (properties.CorrelationData, properties.PayloadFormatIndicator) == (b"c", 1)
    assert properties.MessageExpiryInterval > 1e9
    assert properties.UserProperty == [("a", "b"), ("hookmq-bridge-path", "first,here")]
    assert properties_of(second).UserProperty == [("hookmq-bridge-path", "here")]
    late = Client(remote.port, "late", "hq/#")
    assert await arrived(late, 1) == ["1"]
    await one.close()
    far.close()
    late.close()


async def test_messages_in_a_loop_and_expired_ones_are_not_sent(
    tmp_path: Path, remote: Mosquitto
) -> None:
    far = Client(remote.port, "far", "plant/#")
    one = driver(tmp_path, remote.port, remote="hq")
    await one.open()
    paths = ["other", "hq,other", "other,here,other2", ",".join(f"b{n}" for n in range(33))]
    records = [
        record(at, user_properties=(("hookmq-bridge-path", path),)) for at, path in enumerate(paths)
    ]
    await one.write(make_batch([*records, record(4, expires_at=1.0), record(5)]))
    assert await arrived(far, 2) == ["0", "5"]
    assert (one.metrics()["loops"], one.metrics()["expired"]) == (3, 1)
    await one.close()
    far.close()


async def test_the_window_is_kept_and_the_order_too(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far", "plant/#", 1)
    one = driver(tmp_path, remote.port, window=3)
    await one.open()
    most = 0
    take = one._window.take

    def count(packet: Any) -> None:
        nonlocal most
        most = max(most, one._window.count)
        take(packet)

    assert one._link is not None
    one._link._on_packet = count
    await one.write(make_batch([record(at) for at in range(60)]))
    assert await arrived(far, 60) == [str(at) for at in range(60)]
    assert most == 3
    await one.close()
    far.close()


async def test_another_address_is_used_and_the_first_again(
    tmp_path: Path, remote: Mosquitto
) -> None:
    down = free_port()
    one = driver(tmp_path, down, remote.port, return_after="10ms")
    await one.open()
    await one.write(make_batch([record(0)]))
    first = Mosquitto(tmp_path / "first", port=down)
    await asyncio.sleep(0.02)  # longer than return_after
    with pytest.raises(TargetUnavailable, match="preferred"):
        await one.write(make_batch([record(1)]))
    await one.close()
    again = driver(tmp_path, down, remote.port)
    await again.open()
    assert again._remote.address is not None
    assert again._remote.address.port == down
    await again.close()
    first.stop()


async def test_round_robin_goes_on_with_the_next_address(tmp_path: Path, remote: Mosquitto) -> None:
    second = Mosquitto(tmp_path / "second")
    used = []
    for _ in range(4):
        one = driver(tmp_path, remote.port, second.port, round_robin=True, client_id="round")
        await one.open()
        assert one._remote.address is not None
        used.append(one._remote.address.port)
        await one.close()
    assert used == [remote.port, second.port] * 2
    second.stop()


async def test_the_state_topic_says_when_the_bridge_is_lost(
    tmp_path: Path, remote: Mosquitto
) -> None:
    far = Client(remote.port, "far", "state")
    one = driver(tmp_path, remote.port, state_topic="state")
    await one.open()
    assert await arrived(far, 1) == ["1"]
    await one.close()
    assert await arrived(far, 2) == ["1", "0"]
    one = driver(tmp_path, remote.port, state_topic="state")
    await one.open()
    assert one._link is not None
    assert one._link._transport is not None
    one._link._transport.abort()  # the will
    assert (await arrived(far, 4))[2:] == ["1", "0"]
    # An idle bridge connects again by itself.
    assert (await arrived(far, 5))[4:] == ["1"]
    await one.close()
    far.close()


async def test_mistakes_are_named(tmp_path: Path) -> None:
    server = Mosquitto(tmp_path / "remote", anonymous=False)
    error = await reason_of(driver(tmp_path, server.port, username="x", password="wrong"))
    assert "not authorized" in error.reason or "bad user name or password" in error.reason
    assert error.permanent
    assert "wrong" not in error.reason
    error = await reason_of(
        driver(tmp_path, server.port, username="x", password="y", protocol="3.1.1")
    )
    assert error.permanent
    server.stop()
    error = await reason_of(driver(tmp_path, free_port()))
    assert (error.reason, error.permanent) == ("connection refused", False)
    unknown = driver(tmp_path, 1)
    object.__setattr__(unknown.settings, "addresses", ("no-such-host.invalid:1883",))
    unknown._remote._remotes = unknown.settings.remotes
    assert (await reason_of(unknown)).reason == "unknown host"


async def test_a_server_that_is_silent_or_no_broker_is_named(tmp_path: Path) -> None:
    async def greet(reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        held.append(writer)

    held = []

    async def hold(reader: Any, writer: Any) -> None:
        held.append(writer)

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    web = await asyncio.start_server(greet, "127.0.0.1", 0)
    error = await reason_of(
        driver(tmp_path, silent.sockets[0].getsockname()[1], connect_timeout="200ms")
    )
    assert error.reason == "no answer in time"
    error = await reason_of(driver(tmp_path, web.sockets[0].getsockname()[1]))
    assert "violated the protocol" in error.reason or "does it speak MQTT" in error.reason
    for writer in held:
        writer.close()
    silent.close()
    web.close()


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o644)
    return certificate, key


async def test_certificates_are_verified(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    server = Mosquitto(tmp_path / "remote", f"certfile {certificate}", f"keyfile {key}")
    far = f"localhost:{server.port}"
    one = driver(tmp_path, 1, addresses=[far], tls={"ca_file": str(certificate)})
    await one.open()
    await one.write(make_batch([record(0)]))
    await one.close()
    error = await reason_of(driver(tmp_path, 1, addresses=[far], tls={}))
    assert error.reason.startswith("certificate: ")
    assert error.permanent
    wrong = driver(tmp_path, server.port, tls={"ca_file": str(certificate)})  # 127.0.0.1
    error = await reason_of(wrong)
    assert "IP address mismatch" in error.reason
    server.stop()


async def test_a_forbidden_topic_is_rejected_and_the_others_arrive(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic write plant/#\ntopic read #\ntopic deny plant/secret\n")
    acl.chmod(0o644)
    server = Mosquitto(tmp_path / "remote", f"acl_file {acl}", "max_inflight_messages 100")
    far = Client(server.port, "far", "#", 1)
    for qos in (1, 2):
        one = driver(tmp_path, server.port, qos=qos)
        await one.open()
        batch = [record(0), record(1, topic="plant/secret"), record(2)]
        with pytest.raises(Rejected) as caught:
            await one.write(make_batch(batch))
        assert list(caught.value.reasons) == [1]
        assert "not authorized (0x87)" in caught.value.reasons[1]
        if not caught.value.stored:
            await one.write(make_batch([batch[0], batch[2]]))
        assert await arrived(far, 2) == ["0", "2"]
        far.messages.clear()
        await one.close()
    far.close()
    server.stop()


async def test_a_packet_beyond_the_limit_is_rejected(tmp_path: Path) -> None:
    server = Mosquitto(tmp_path / "remote", "max_packet_size 1000")
    one = driver(tmp_path, server.port)
    await one.open()
    with pytest.raises(Rejected, match="exceeds the remote broker's limit of 1000"):
        await one.write(make_batch([make_record(0, b"x" * 2000)]))
    (problem,) = await one.check(make_record(0, b"x" * 2000))
    assert "limit of 1000" in problem.message
    await one.close()
    server.stop()


# exactly once --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["sent", "saved", "released"])
async def test_what_was_sent_before_a_crash_is_not_published_twice(
    tmp_path: Path, remote: Mosquitto, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, nothing is published twice. The driver dies before it stores that all messages have arrived,
    before PUBREL, or before PUBCOMP.
    """
    far = Client(remote.port, "far", "plant/#")
    records = [record(at) for at in range(5)]
    one = driver(tmp_path, remote.port, qos=2)
    await one.open()
    assert one._link is not None
    link = one._link
    saves = 0
    save = InFlight.save

    def crash(self: InFlight, path: Path, *, sync: bool) -> None:
        nonlocal saves
        saves += 1
        if saves == 2 and step == "sent":
            raise OSError(5, "crash")
        save(self, path, sync=sync)

    async def die(offsets: Any) -> None:
        if step == "released":
            for at in offsets:
                link.send_bytes(bytes((0x62, 2)) + packet_id(at).to_bytes(2, "big"))
            await arrived(far, 5)
        raise TargetUnavailable("crash")

    with monkeypatch.context() as patch:
        patch.setattr(InFlight, "save", crash)
        patch.setattr(one, "_release", die)
        with pytest.raises(TargetUnavailable, match="crash"):
            await one.write(make_batch(records))
    await link.abort()
    await one.close()
    again = driver(tmp_path, remote.port, qos=2)
    held = await again.open()
    assert held is not None
    assert held.offset == (0 if step == "sent" else 5)
    left = [one for one in [*records, record(5)] if one.offset >= held.offset]
    await again.write(make_batch(left))
    await again.close()
    assert await arrived(far, 6) == ["0", "1", "2", "3", "4", "5"]
    far.close()


async def test_a_lost_session_repeats_what_may_not_have_arrived(tmp_path: Path) -> None:
    held = InFlight(LOG_ID, 5, "127.0.0.1:1", (2, 3, 4))
    held.save(tmp_path / "mqtt-test.json", sync=False)
    server = Mosquitto(tmp_path / "remote")
    one = driver(tmp_path, server.port, qos=2)
    position = await one.open()
    assert position is not None
    assert position.offset == 2
    await one.close()
    server.stop()


async def test_a_damaged_file_stops_the_bridge(tmp_path: Path, remote: Mosquitto) -> None:
    (tmp_path / "mqtt-test.json").write_text("{")
    error = await reason_of(driver(tmp_path, remote.port, qos=2))
    assert "is damaged" in error.reason
    assert error.permanent


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"addresses": []}, "addresses: empty"),
        ({"addresses": ["mqtt://x"]}, "addresses: 'mqtt://x' is not an address"),
        ({"addresses": ["x:70000"]}, "the port must be from 1 to 65535"),
        ({"broker": "a,b"}, "broker: 'a,b' is not a name"),
        ({"broker": ""}, "broker: '' is not a name"),
        ({"state_topic": "a/#"}, "state_topic: "),
        ({"protocol": "3.1.1", "password": "p"}, "username: MQTT 3.1.1 has no password"),
        ({"rules": [{"pattern": "a/#/b"}]}, "is not a topic filter"),
        ({"rules": [{"local_prefix": "a/+/"}]}, "contains a wildcard"),
        ({"rules": [{"qos": 3}]}, "qos"),
        ({"tls": {"ca_file": "/no/such/file"}}, "tls: "),
        ({"keep_alive": "1s"}, "keep_alive"),
    ],
)
def test_mistakes_in_settings_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(MqttDriver.Settings, {"addresses": ["x"], "broker": "b", **given})
    assert message in str(caught.value)
