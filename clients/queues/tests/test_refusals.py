"""Test how a broker with passwords, access rules and low limits refuses a client."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hookmq_queues_client import Backoff, Client, ConnectionRefused, NotAuthorized, Refused, Worker
from passwords import USERS
from serving import Served, serving

CONFIG = """\
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:0"}}]
broker: {{max_packet_size: 16KiB, receive_maximum: 3}}
plugins:
  - use: auth_password
    config: {{path: "{folder}/users.yaml"}}
  - use: acl_file
    config: {{path: "{folder}/acl.yaml"}}
  - use: queues
    config:
      path: "{folder}/queues"
      queues:
        - {{name: jobs}}
        - {{name: secret}}
        - {{name: closed, groups: [{{name: workers, settle: explicit}}], visibility_timeout: 1s}}
"""
RULES = """\
rules:
  - {allow: all, topic: "$queue/jobs/#"}
  - {deny: all, topic: "$queue/closed/$ack"}
  - {allow: all, topic: "$queue/closed/#"}
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a broker with strict rules and low limits."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "users.yaml").write_text(USERS)
    os.chmod(folder / "users.yaml", 0o600)
    (folder / "acl.yaml").write_text(RULES)
    (folder / "hookmq.yaml").write_text(CONFIG.format(folder=folder))
    with serving("-c", str(folder / "hookmq.yaml")) as served:
        yield served


@pytest.fixture
async def alice(strict: Served) -> AsyncIterator[Client]:
    """Return a client with the right password."""
    url = f"mqtt://alice:secret@127.0.0.1:{strict.ports['tcp']}"
    async with Client(url, timeout=30, reconnect=Backoff(0.01, 1, 0.01)) as client:
        yield client


async def test_a_wrong_password_is_not_tried_again(strict: Served) -> None:
    url = f"mqtt://alice:wrong@127.0.0.1:{strict.ports['tcp']}"
    async with Client(url) as client:
        with pytest.raises(ConnectionRefused) as caught:
            await client.queue("jobs").publish(b"x")
        assert caught.value.code == 0x86
        with pytest.raises(ConnectionRefused):
            await anext(client.queue("jobs").consume())
        with pytest.raises(
            ConnectionRefused, match="the broker refused to accept the client: 0x86"
        ):
            await Worker(client.queue("jobs"), print).run()


async def test_a_queue_that_the_rules_deny(alice: Client) -> None:
    with pytest.raises(NotAuthorized, match=r"accept a message to \$queue/secret: 0x87"):
        await alice.queue("secret").publish(b"x")
    with pytest.raises(NotAuthorized, match=r"subscribe to \$queue/secret: 0x87"):
        await anext(alice.queue("secret").consume())


async def test_a_settlement_that_the_rules_deny(alice: Client) -> None:
    queue = alice.queue("closed")
    await queue.publish(b"x")
    messages = queue.consume()
    message = await anext(messages)
    with pytest.raises(NotAuthorized):
        await message.ack()
    assert (await anext(messages)).delivery_count == 2


async def test_the_limits_of_the_broker_are_kept(alice: Client) -> None:
    """The client stays within the broker's limits. If it exceeded them, it would be disconnected and would publish its
    messages again.
    """
    queue = alice.queue("jobs")
    await asyncio.gather(*(queue.publish(b"%d" % number) for number in range(50)))
    for headers in ({}, {"wide": "x" * 4000}):
        with pytest.raises(
            Refused, match=r"0x95, the packet has .* bytes, and the broker accepts at most 16384"
        ):
            await queue.publish(bytes(16_384 - 4_000 * len(headers)), headers=headers)
    messages = queue.consume(prefetch=100)
    found = [await anext(messages) for _ in range(50)]
    assert [int(one.payload) for one in found] == list(range(50))
    assert await asyncio.gather(*(one.ack() for one in found)) == [True] * 50
