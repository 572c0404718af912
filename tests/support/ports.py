"""A TCP port for a server that is told its port instead of telling it."""

import random
import socket
from contextlib import suppress
from pathlib import Path


def free_port() -> int:
    """A port on 127.0.0.1 that nobody else is given before its server is there, or while it is down: below those that
    the kernel hands out, and not from the generator that tests seed."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, low - 16_000), max(2048, low))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
