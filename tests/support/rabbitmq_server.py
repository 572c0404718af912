"""A RabbitMQ server from Debian's package, running in a test's folder on free ports."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from ports import free_port

PATH = "/usr/lib/rabbitmq/bin:/usr/local/lib/rabbitmq/bin"
"""The folders of the real programs. The wrappers in /usr/sbin switch to another user, with that user's settings."""


class RabbitMqServer:
    """A running server, with the user `guest` and the password `guest`. `more` is added to its configuration."""

    def __init__(self, more: str = "") -> None:
        program = shutil.which("rabbitmq-server", path=PATH)
        if program is None:
            pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
        self.folder = Path(mkdtemp(prefix="hookmq-rabbitmq-"))
        self.port = free_port()
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"log.console = true\nlog.console.level = warning\nlog.file = false\n{more}\n"
        )
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "advanced.config").write_text("[].\n")
        self.node = f"sinks{self.port}@localhost"
        self._program = program
        names = free_port()
        self._environment = {
            **os.environ,
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._epmd = subprocess.Popen(
            ["epmd"], env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Without it, Erlang would start a daemon that outlives the test.
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", names), 5):
                break
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The server's address, for the driver's setting `url`."""
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it greets a client."""
        log = self.folder / "console"
        with log.open("ab") as output:
            # The program is a script. Erlang is its child, in the same group.
            self._process = subprocess.Popen(
                [self._program], env=self._environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        greeting = b"AMQP\0\0\x09\x01"
        while True:
            assert self._process.poll() is None, f"RabbitMQ ended: {log.read_text()[-2000:]}"
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 30) as one,
            ):
                one.sendall(greeting)
                if one.recv(1) == b"\x01":
                    return

    def control(self, *words: str) -> None:
        """Run `rabbitmqctl`."""
        self.report(*words)

    def report(self, *words: str) -> str:
        """Run `rabbitmqctl`, and return what it prints."""
        program = shutil.which("rabbitmqctl", path=PATH)
        assert program is not None
        return subprocess.run(
            [program, "-n", self.node, *words],
            env=self._environment, check=True, capture_output=True, timeout=60, text=True,
        ).stdout  # fmt: skip

    def stop(self) -> None:
        """Kill the server. Its durable queues and persistent messages stay on disk."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        self._epmd.kill()
        self._epmd.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self) -> Any:
        """Return an aio-pika connection that the caller must await."""
        import aio_pika

        return aio_pika.connect(self.url)
