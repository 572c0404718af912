"""An S3 server on this machine: moto, which checks signatures and keeps objects in memory. `Door` can block access to
it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from typing import Any

import pytest
from ports import free_port

REGION = "eu-central-1"
WAIT = 60.0


class S3Server:
    """A running server with one user and a bucket for each test. It refuses all other users."""

    def __init__(self) -> None:
        pytest.importorskip("moto.server")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        # Allow requests without credentials, because the first user must be created without one.
        environment = {"INITIAL_NO_AUTH_ACTION_COUNT": "1000000", "PATH": "/usr/bin:/bin"}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + WAIT
        while not self._ready():
            assert self._process.poll() is None, "moto ended"
            assert time.monotonic() < until
        self.key = self.secret = "first"
        iam = self.client("iam")
        iam.create_user(UserName="sink")
        statement = [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]
        policy = {"Version": "2012-10-17", "Statement": statement}
        iam.put_user_policy(UserName="sink", PolicyName="all", PolicyDocument=json.dumps(policy))
        made = iam.create_access_key(UserName="sink")["AccessKey"]
        self.key, self.secret = made["AccessKeyId"], made["SecretAccessKey"]
        self._post("reset-auth", b"0")

    def client(self, service: str = "s3") -> Any:
        """Return a boto3 client for the server."""
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]

        return boto3.client(
            service, endpoint_url=self.url, region_name=REGION, aws_access_key_id=self.key,
            aws_secret_access_key=self.secret, config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip

    def stop(self) -> None:
        """Suspend the server, so that it stops responding. It keeps its objects."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def start(self) -> None:
        """Resume the server."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server."""
        self._process.kill()
        self._process.wait(60)

    def _ready(self) -> bool:
        with suppress(OSError):
            urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=WAIT).close()
            return True
        return False

    def _post(self, path: str, data: bytes) -> None:
        kind = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/{path}", data, kind)
        urllib.request.urlopen(request, timeout=WAIT).close()


class Door:
    """A proxy in front of a server on this machine. It has its own port, and runs on the test's event loop."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        """End all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._behind)

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    to.write(data)
                    await to.drain()
            to.close()

        try:
            await asyncio.gather(copy(reader, back_writer), copy(back_reader, writer))
        finally:
            for one in (writer, back_writer):
                one.transport.abort()
