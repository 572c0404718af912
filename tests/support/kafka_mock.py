"""librdkafka's mock Kafka cluster in its own process, which clients reach over TCP.

It keeps messages in memory and creates topics on first use. It is not a complete Kafka broker: it supports neither users
nor TLS, and cannot be used to test transactional guarantees.
"""

import os
import signal
import subprocess
import sys

PROGRAM = """
import sys
from confluent_kafka import Producer

cluster = Producer({"test.mock.num.brokers": 3})
brokers = cluster.list_topics(timeout=30).brokers.values()
print(",".join(f"{one.host}:{one.port}" for one in brokers), flush=True)
sys.stdin.read()
"""


class KafkaMock:
    """A mock cluster of three brokers. `servers` contains their addresses."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip().split(",")
        assert self.servers[0], "the mock cluster ended"

    def stop(self) -> None:
        """Suspend all brokers, so that they stop responding. They keep their messages."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def start(self) -> None:
        """Resume all brokers."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the brokers."""
        self._process.kill()
        self._process.communicate()
