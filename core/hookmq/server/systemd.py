"""Talk to the service manager: readiness, watchdog and inherited sockets (source: sd_notify(3), sd_listen_fds(3))."""

import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Final

from hookmq.model.errors import BindError

FIRST_DESCRIPTOR: Final = 3


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `state`, such as ``READY=1``, to the service manager; return False if there is none. Does not block."""
    path = environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = "\0" + path[1:] if path[0] == "@" else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float:
    """Return the interval of ``WATCHDOG=1`` messages in seconds: half of the watchdog's timeout, or
    0 if it is off.
    """
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    digits = environ.get("WATCHDOG_USEC", "")
    return int(digits) / 2e6 if digits.isascii() and digits.isdigit() else 0.0


def inherited_sockets(
    environ: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> dict[str, socket.socket]:
    """Return the listening sockets that the service manager passed to this process, by listener name.

    A socket's name is ``FileDescriptorName=`` in its .socket unit. Removes the variables from `environ`, so that child
    processes do not use them. Raises BindError for missing or duplicate names.
    """
    owner = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if owner != str(os.getpid()) or not count.isdigit():
        return {}
    if len(names) != int(count) or len(set(names)) != len(names) or "" in names:
        raise BindError(
            f"the service manager passed {count} sockets named {':'.join(names)!r}: each needs the name of its listener "
            "(FileDescriptorName=)"
        )
    sockets = {}
    for descriptor, name in enumerate(names, first):
        os.set_inheritable(descriptor, False)
        sockets[name] = socket.socket(fileno=descriptor)
    return sockets
