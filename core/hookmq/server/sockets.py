"""Open listening sockets, and remove Unix socket files."""

import errno
import os
import socket
import stat
from pathlib import Path

from hookmq.model.errors import BindError
from hookmq.server.addresses import EVERY, parse_bind
from hookmq.server.settings import ListenerSettings


def open_socket(settings: ListenerSettings, listen: bool = True) -> socket.socket:
    """Return a listening, non-blocking socket for `settings.bind`. The call may block to resolve a host name. Raises
    BindError with the address and the reason.

    A TCP socket only reserves its port if `listen` is false.
    """
    try:
        if settings.type == "unix":
            return _open_unix(settings)
        return _open_tcp(settings, listen)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in (errno.EACCES, errno.EPERM) and settings.type != "unix":
            reason += "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE or a service manager's socket)"
        raise BindError(
            f"listener {settings.name!r} cannot listen on {settings.bind}: {reason}"
        ) from error


def _open_tcp(settings: ListenerSettings, listen: bool) -> socket.socket:
    host, port = parse_bind(settings.bind)
    dual = host == EVERY and socket.has_dualstack_ipv6()
    if host == EVERY:
        host = "::" if dual else "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)  # prefer IPv4
    family, _, _, _, address = found[0]
    # Pass the protocol: for protocol 0, asyncio leaves Nagle's algorithm on, which delays packets by 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.bind(address)
        if listen:
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
    # Use the umask, which applies to the whole process: between bind and a chmod, anyone could connect.
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
    """Remove a socket file that no process listens on. Raises OSError if it is in use or not a socket."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise OSError(errno.EEXIST, "the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def unlink_socket(path: str, inode: int) -> None:
    """Remove a socket file if it still has this `inode`. Another process may have replaced it."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except OSError:
        pass
