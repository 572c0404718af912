"""Listening sockets: opened for an address, taken over from the service manager, put away."""

import errno
import os
import socket
import stat
from pathlib import Path

from hookmq.errors import BindError
from hookmq.server.addresses import EVERY, parse_bind
from hookmq.server.settings import ListenerSettings


def open_socket(settings: ListenerSettings) -> socket.socket:
    """A listening, non-blocking socket for `settings.bind`. May look up a host's name. Raises BindError that names the
    address and the system's reason."""
    try:
        if settings.type == "unix":
            return _open_unix(settings)
        return _open_tcp(settings)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in (errno.EACCES, errno.EPERM) and settings.type != "unix":
            reason += "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE or a service manager's socket)"
        raise BindError(
            f"listener {settings.name!r} cannot listen on {settings.bind}: {reason}"
        ) from error


def _open_tcp(settings: ListenerSettings) -> socket.socket:
    host, port = parse_bind(settings.bind)
    dual = host == EVERY and socket.has_dualstack_ipv6()
    if host == EVERY:
        host = "::" if dual else "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # of a name's addresses IPv4 first
    family, _, _, _, address = found[0]
    # With the protocol named, since asyncio leaves Nagle's algorithm on for sockets of protocol 0: 40 ms stalls.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.bind(address)
        sock.listen(settings.backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _open_unix(settings: ListenerSettings) -> socket.socket:
    path = Path(settings.bind)
    if path.exists() or path.is_symlink():
        _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mode = int(settings.mode, 8)
    # Between bind and chmod nobody may connect who may not afterwards. The umask is the whole process's, for a moment.
    umask = os.umask(0o777 & ~mode)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(umask)
    sock.listen(settings.backlog)
    sock.setblocking(False)
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket's file that a process left which is gone. Raises OSError when something else stands there or
    somebody listens."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise OSError(errno.EEXIST, "a file that is no socket stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def unlink_socket(path: str, inode: int) -> None:
    """Remove the socket's file at `path` when it is still the one with `inode`; another process may have put its own."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass
