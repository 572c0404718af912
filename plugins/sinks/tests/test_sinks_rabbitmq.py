"""Test the `rabbitmq` driver against a real server: the driver contract, headers, returned messages, and mistakes."""

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import trustme
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.drivers.rabbitmq import RabbitMqDriver, RabbitMqSettings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from ports import free_port
from rabbitmq_server import RabbitMqServer

NUMBERS = itertools.count()
MAX_SIZE = 65_536


class TlsServer(RabbitMqServer):
    """A server that also has a TLS port."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        own = authority.issue_cert("localhost")
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        own.cert_chain_pems[0].write_to_path(folder / "server.pem")
        own.private_key_pem.write_to_path(folder / "server.key")
        self.tls_port = free_port()
        super().__init__(
            f"max_message_size = {MAX_SIZE}\nlisteners.ssl.default = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.cacertfile = {self.ca}\nssl_options.certfile = {folder}/server.pem\n"
            f"ssl_options.keyfile = {folder}/server.key\n"
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    found = TlsServer(tmp_path_factory.mktemp("rabbitmq"))
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestRabbitMq(DriverContract):
    """Runs the driver contract. Each test has its own durable queue, bound to the exchange amq.topic with `tN.#`."""

    kind = RabbitMqDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    async def _queue(self, server: TlsServer) -> None:
        self.server = server
        self.name = f"t{next(NUMBERS)}"
        async with self.channel() as channel:
            queue = await channel.declare_queue(self.name, durable=True)
            await queue.bind("amq.topic", f"{self.name}.#")

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        async with await aio_pika.connect(self.server.url) as connection:
            yield await connection.channel()

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "url": self.server.url,
            "routing_key": f"{self.name}/${{topic}}",
            **self.more,
        }

    async def messages(self, queue: str = "") -> list[Any]:
        found = []
        async with self.channel() as channel:
            place = await channel.get_queue(queue or self.name)
            while (one := await place.get(no_ack=False, fail=False)) is not None:
                found.append(one)
        return found  # they return to the queue, as they are not acknowledged

    async def stored_ids(self) -> list[str]:
        return [one.message_id for one in await self.messages()]

    def poison(self, offset: int) -> Record:
        self.more = {"routing_key": f"${{property.to}}{self.name}/${{topic}}"}
        return make_record(offset, user_properties=(("to", "nowhere"),))

    def record(self, offset: int) -> Record:
        return make_record(offset, user_properties=(("to", ""),))

    async def stop_target(self) -> None:
        self.server.stop()

    async def start_target(self) -> None:
        self.server.start()

    async def refused(self, *records: Record) -> Any:
        """Write records, and return the error that is raised."""
        driver, _ = await self._opened()
        try:
            with pytest.raises((Rejected, TargetUnavailable)) as caught:
                await driver.write(make_batch(records))
        finally:
            await driver.close()
        return caught.value

    async def test_a_message_and_its_properties(self) -> None:
        self.more = {
            "headers": {"n": "${payload.n}", "c": "${payload.c}", "no": "${payload.no}", "l": "${payload.l}"}
        }  # fmt: skip
        record = make_record(
            3,
            {"n": 3, "c": 21.123456789, "l": [1]},
            content_type="application/json",
            user_properties=(("unit", "C"), ("CC", "amq.fanout"), ("x-delay", "5"), ("ä" * 70, "long")),
        )  # fmt: skip
        driver, _ = await self._opened()
        await driver.write(make_batch([record]))
        await driver.close()
        (found,) = await self.messages()
        assert found.body == record.payload
        assert found.routing_key == f"{self.name}.plant.a"
        assert found.exchange == "amq.topic"
        assert found.headers == {
            "unit": "C", "mqtt-topic": "plant/a", "mqtt-client-id": "c", "n": 3, "c": "21.123456789", "l": "[1]",
        }  # fmt: skip
        assert found.content_type == "application/json"
        assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
        assert found.message_id == record.id
        assert found.timestamp.timestamp() == record.received_at
        assert found.app_id == "hookmq"

    async def test_a_queue_without_an_exchange(self) -> None:
        self.more = {
            "exchange": "", "routing_key": self.name, "persistent": False, "content_type": "text/${topic.2}",
            "user_properties": False,
        }  # fmt: skip
        driver, _ = await self._opened()
        assert list(await driver.check(self.record(0))) == []
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        (found,) = await self.messages()
        assert found.content_type == "text/a"
        assert found.delivery_mode == aio_pika.DeliveryMode.NOT_PERSISTENT
        assert "to" not in found.headers

    async def test_many_messages_keep_their_order(self) -> None:
        records = [make_record(n, b"x" * (n % 300)) for n in range(5000)]
        driver, _ = await self._opened()
        await driver.write(make_batch(records))
        await driver.close()
        assert await self.stored_ids() == [one.id for one in records]

    async def test_a_message_for_no_queue_is_rejected_and_named(self) -> None:
        self.poison(0)
        error = await self.refused(self.record(0), self.poison(1))
        assert isinstance(error, Rejected)
        assert error.reasons == {
            1: f"no route: the exchange amq.topic has no queue for nowhere{self.name}.plant.a"
        }

    async def test_a_message_for_no_queue_is_lost_only_if_that_is_wanted(self) -> None:
        record = self.poison(0)
        self.more = {**self.more, "mandatory": False}
        driver, _ = await self._opened()
        await driver.write(make_batch([record]))
        await driver.close()
        assert await self.stored_ids() == []

    async def test_a_message_that_is_too_large_is_rejected(self) -> None:
        driver, _ = await self._opened()
        records = [make_record(0), make_record(1, b"x" * (MAX_SIZE + 1)), make_record(2)]
        with pytest.raises(Rejected) as caught:
            await driver.write(make_batch(records))
        assert caught.value.reasons == {1: "65537 bytes, but RabbitMQ takes at most 65536"}
        await driver.write(make_batch([records[0], records[2]]))
        await driver.close()
        assert list(dict.fromkeys(await self.stored_ids())) == [records[0].id, records[2].id]

    async def test_headers_fill_a_frame(self) -> None:
        most = 131_072 - 2048 - 3 * 6 - len("tomqtt-topicplant/amqtt-client-idc")
        self.more = {"headers": {"x": "x" * (most - 7)}}
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        (found,) = await self.messages()
        assert len(found.headers["x"]) == most - 7

    async def test_a_full_queue_is_tried_again(self) -> None:
        async with self.channel() as channel:
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await channel.declare_queue(f"{self.name}full", arguments=full)
        self.more = {"exchange": "", "routing_key": f"{self.name}full"}
        error = await self.refused(*(self.record(n) for n in range(5)))
        assert isinstance(error, TargetUnavailable)
        assert not error.permanent
        assert "full" in error.reason

    async def test_a_missing_exchange_is_an_operators_mistake(self) -> None:
        self.more = {"exchange": "absent"}
        driver, _ = await self._opened()
        for sample in (None, self.record(0)):
            (problem,) = await driver.check(sample)
            assert problem.key == "exchange"
            assert problem.message == "there is no exchange absent in the virtual host /"
        await driver.close()
        error = await self.refused(self.record(0))
        assert isinstance(error, TargetUnavailable)
        assert error.permanent
        assert "no exchange 'absent'" in error.reason

    async def test_check_names_a_missing_queue(self) -> None:
        self.more = {"exchange": "", "routing_key": "absent"}
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.record(0))
        await driver.close()
        assert problem.key == "routing_key"
        assert "no queue absent" in problem.message

    async def test_rights_are_an_operators_task(self) -> None:
        control = self.server.control
        password = "hunter2%41@/:é+ &"
        control("add_user", self.name, password)
        control("set_permissions", self.name, "", "", ".*")
        self.more = {"user": self.name, "password": password}
        error = await self.refused(self.record(0))
        assert isinstance(error, TargetUnavailable)
        assert error.permanent
        assert "refused" in error.reason
        assert "hunter2" not in error.reason

    async def test_a_server_without_memory_says_so(self) -> None:
        self.server.control("set_vm_memory_high_watermark", "0.0001")
        try:
            error = await self.refused(*(self.record(n) for n in range(3)))
        finally:
            self.server.control("set_vm_memory_high_watermark", "0.9")
        assert isinstance(error, TargetUnavailable)
        assert not error.permanent
        assert "lacks memory" in error.reason

    @pytest.mark.parametrize(
        ("topic", "change", "word"),
        [
            ("a" * 300, {}, "the routing key has 30"),
            ("a", {"content_type": "x" * 300}, "the content type has 300 bytes"),
            ("a", {"exchange": "${property.gone}"}, "no value for"),
            ("a", {"exchange": "${topic}!"}, "AMQP does not take the exchange 'a!'"),
            ("a", {"headers": {"x": "x" * 130_000}}, "the headers have 130"),
        ],
    )
    async def test_a_record_that_does_not_fit_is_rejected(
        self, topic: str, change: dict[str, Any], word: str
    ) -> None:
        self.more = change
        error = await self.refused(make_record(0, topic=topic))
        assert isinstance(error, Rejected)
        assert word in error.reasons[0]

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"password": "hunter2"}, "ACCESS_REFUSED"),
            ({"virtual_host": "absent"}, "vhost absent not found"),
        ],
    )
    async def test_credentials_and_virtual_hosts_are_an_operators_task(
        self, change: dict[str, Any], word: str
    ) -> None:
        self.more = change
        driver = self.make()
        with pytest.raises(TargetUnavailable) as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent
        assert word in caught.value.reason
        assert "hunter2" not in caught.value.reason

    async def test_tls(self) -> None:
        assert isinstance(self.server, TlsServer)
        url = f"amqps://localhost:{self.server.tls_port}"
        self.more = {"url": url, "tls": {"ca_file": str(self.server.ca)}}
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        assert await self.stored_ids() == [self.record(0).id]
        self.more = {"url": url}
        driver = self.make()
        with pytest.raises(TargetUnavailable, match="certificate") as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent


async def test_nobody_listens() -> None:
    settings = bind_values(RabbitMqSettings, {"url": f"amqp://127.0.0.1:{free_port()}"})
    driver = RabbitMqDriver(settings, DriverContext("test", "test", "5eed"))
    with pytest.raises(TargetUnavailable) as caught:
        await driver.open()
    await driver.close()
    assert not caught.value.permanent
    assert caught.value.reason == "Connection refused"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "http://a"}, "url: expected amqp://"),
        ({"url": "amqp://a:hunter2@b"}, "url: contains a user"),
        ({"url": "amqp://a:99999"}, "url: Port out of range"),
        ({"url": "amqp://a/plant"}, "url: ends after the port"),
        ({"tls": {}}, "tls: needs amqps://"),
        ({"virtual_host": ""}, "virtual_host: empty"),
        ({"exchange": "", "routing_key": ""}, "routing_key: required"),
        ({"headers": {"n": 5}}, "headers.n: expected a template, found 5"),
        ({"headers": {"CC": "a"}}, "headers.CC: cannot be the name"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(RabbitMqSettings, change)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
