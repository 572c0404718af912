"""Test the reader process on its own: TLS with client certificates, an occupied port, the end of its broker, and
removed streams.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from hookmq.plugin import StoreError
from hookmq.server_api import TlsSettings
from hookmq_spark_sink.config import Access, ApiConfig, SparkSinkConfig, StreamConfig
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_spark_sink.process import ReaderProcess

pytestmark = pytest.mark.slow

BOOT = bytes(range(16))
TOKEN = "process-token-0123456789"
Keep = Callable[..., Any]


@asynccontextmanager
async def serving(kept: Any, config: ApiConfig) -> AsyncIterator[ReaderProcess]:
    logged: list[Any] = []
    reader = ReaderProcess(config, [kept.stream], BOOT, lambda *one, **more: logged.append(one))
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop(5)
        assert logged == []


async def test_a_client_certificate_replaces_the_token(keep: Keep, tmp_path: Path) -> None:
    kept = keep()
    kept.publish(b"1")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    tls = TlsSettings(
        certificate=str(tmp_path / "server.pem"),
        client_ca=str(tmp_path / "ca.pem"),
        client_certificates="optional",
    )
    access = (Access(common_name="spark"), Access(token=TOKEN))
    async with serving(kept, ApiConfig("127.0.0.1:0", access, tls)) as reader:

        async def ask(common_name: str, headers: dict[str, str]) -> int:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            if common_name:
                issued = authority.issue_cert("client.example", common_name=common_name)
                issued.configure_cert(context)
            connector = aiohttp.TCPConnector(ssl=context)
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                url = f"https://127.0.0.1:{reader.port}/v1/streams/all/offsets"
                async with session.get(url) as answer:
                    await answer.read()
                    return answer.status

        assert await ask("spark", {}) == 200
        assert await ask("flink", {}) == 401
        assert await ask("", {}) == 401
        assert await ask("", {"Authorization": f"Bearer {TOKEN}"}) == 200


async def test_a_port_that_is_taken_is_told(keep: Keep) -> None:
    kept = keep()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = ApiConfig(f"127.0.0.1:{port}", (Access(token=TOKEN),))
        reader = ReaderProcess(config, [kept.stream], BOOT, lambda *_, **__: None)
        with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{port}: .*in use"):
            await reader.start()
    assert TOKEN not in repr(reader)


async def test_it_counts_and_ends_with_its_pipe(keep: Keep) -> None:
    kept = keep()
    kept.publish(b"1")
    async with serving(kept, ApiConfig("127.0.0.1:0", (Access(token=TOKEN),))) as reader:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"http://127.0.0.1:{reader.port}/v1/streams/all/records?partition=0&start=0"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
            assert answer.status == 200
            size = len(await answer.read())
        process = reader._process
        assert process is not None
        async with asyncio.timeout(60):
            while not reader.counts["bytes"]:
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert reader.counts["reads"] == 1
        assert reader.counts["bytes"] == size
    assert process.returncode == 0


def test_a_stream_that_is_no_longer_configured(keep: Keep, tmp_path: Path) -> None:
    from hookmq.plugin import Context

    kept = keep()
    kept.publish(b"1")
    kept.close()
    config = SparkSinkConfig(tmp_path / "spark", (StreamConfig("new", ("#",)),))
    plugin = SparkSinkPlugin(config, Context(id="spark"))

    class Handle:
        runtime = kept.runtime

    with pytest.raises(StoreError, match="all contains a stream that is not configured"):
        plugin.provide_journal(Handle())  # type: ignore[arg-type]
    assert json.loads((kept.stream.folder / "stream.json").read_text())["name"] == "all"
