"""Find the permissions that a user of NATS lacks, without changing anything in NATS."""

from functools import partial
from typing import Final

from hookmq_toolkit.child_runtime import ChildRuntime

from hookmq_cluster.names import Names
from hookmq_cluster.nats_client import NatsClient
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_protocol import publish, publish_with_header
from hookmq_cluster.nats_requests import call_api
from hookmq_cluster.waiting import answer

PATIENCE: Final = 5.0
"""Seconds to wait for a connection, and for the answer of JetStream."""
_ELSEWHERE: Final = b"NATS/1.0\r\nNats-Expected-Stream: -\r\n\r\n"
"""The header of a message that no stream stores, because it requires a stream with the name `-`."""
_MALFORMED: Final = b"["
"""A request that JetStream refuses."""


async def missing_permissions(
    options: NatsOptions, names: Names, node: str, create: bool
) -> list[str]:
    """Return the error of the server for each subject of the cluster that the user may not use.

    With `create`, this includes the permission to create the stream. Raises EngineError if no server can be used.
    """
    denied: list[str] = []

    def log(level: str, event: str, /, **fields: object) -> None:
        text = str(fields.get("error"))
        if event == "cluster.nats_error" and text not in denied:
            denied.append(text)

    runtime = ChildRuntime(log)
    client = NatsClient(options, runtime, lambda _info: "")
    await client.open(PATIENCE)
    try:
        for subject in (names.everyone, names.node(node)):
            client.subscribe(subject, lambda *_message: None)
        client.write(_trials(names, create))
        # The server reports denied subjects before it answers this request.
        info = f"STREAM.INFO.{names.stream}"
        await answer(runtime, partial(call_api, client, runtime, info, None, timeout=PATIENCE))
    finally:
        client.close()
    return denied


def _trials(names: Names, create: bool) -> bytes:
    """Return messages to all subjects that the cluster uses. None of them has an effect."""
    stream = names.stream
    stored, sent = names.trials
    api = {
        f"STREAM.MSG.GET.{stream}": b'{"seq": 1}',
        f"STREAM.PURGE.{stream}": b'{"filter": "%b", "seq": 1}' % stored.encode(),
        f"DIRECT.GET.{stream}": b'{"seq": 1}',
        f"DIRECT.GET.{stream}.{stored}": b"",
        f"CONSUMER.CREATE.{stream}.trial": _MALFORMED,
        f"CONSUMER.DELETE.{stream}.trial": b"",
    }
    if create:
        api[f"STREAM.CREATE.{stream}"] = _MALFORMED
    messages = [publish(f"$JS.API.{subject}", data) for subject, data in api.items()]
    messages.append(publish(f"$JS.FC.{stream}.trial", b""))
    messages.append(publish(sent, b""))
    messages.append(publish_with_header(stored.encode(), _ELSEWHERE, b""))
    return b"".join(messages)
