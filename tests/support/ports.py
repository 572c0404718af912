"""A TCP port for servers that cannot report the port they chose."""

import random
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

_given: Final[deque[int]] = deque(maxlen=1000)


def free_port() -> int:
    """Return a free port on 127.0.0.1 that no other process is given while the server is down.

    It differs from those of earlier calls, whose servers may not be running yet. It is below the kernel's ephemeral
    range, and does not come from the random generator that tests seed.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(max(1024, low - 16_000), max(2048, low))
        if port in _given:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.append(port)
            return port
