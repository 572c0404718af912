"""Test support for systemd: notifications and inherited sockets."""

import os
import socket
from pathlib import Path

import pytest
from hookmq.model.errors import BindError
from hookmq.server.systemd import inherited_sockets, notify, watchdog_interval


def test_notify(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        assert notify("READY=1", {"NOTIFY_SOCKET": address})
        assert manager.recv(100) == b"READY=1"


def test_notify_of_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # Linux chooses an abstract name
        name = manager.getsockname()
        assert notify("STOPPING=1", {"NOTIFY_SOCKET": "@" + name[1:].decode()})
        assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("path", ["", "relative", "/nonexistent/notify"])
def test_nobody_to_notify(path: str) -> None:
    assert not notify("READY=1", {"NOTIFY_SOCKET": path})
    assert not notify("READY=1", {})


def test_watchdog_interval() -> None:
    mine = str(os.getpid())
    assert watchdog_interval({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": mine}) == 2.0
    assert watchdog_interval({"WATCHDOG_USEC": "4000000"}) == 2.0
    assert watchdog_interval({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}) == 0.0
    assert watchdog_interval({"WATCHDOG_USEC": "soon"}) == 0.0
    assert watchdog_interval({}) == 0.0


def environment(names: str, count: int = 2, pid: int | None = None) -> dict[str, str]:
    return {
        "LISTEN_PID": str(pid or os.getpid()),
        "LISTEN_FDS": str(count),
        "LISTEN_FDNAMES": names,
        "OTHER": "kept",
    }


def test_sockets_by_name() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        first = 200  # descriptors side by side, as the service manager passes them
        os.dup2(one.fileno(), first)
        os.dup2(two.fileno(), first + 1)
        environ = environment("default:secure")
        found = inherited_sockets(environ, first)
        assert {name: sock.getsockname() for name, sock in found.items()} == {
            "default": one.getsockname(),
            "secure": two.getsockname(),
        }
        assert environ == {"OTHER": "kept"}
        for sock in found.values():
            assert not sock.get_inheritable()
            assert sock.proto == socket.IPPROTO_TCP
            sock.close()


@pytest.mark.parametrize("names", ["", "one", "one:one", "one:", "one:two:three"])
def test_sockets_without_proper_names(names: str) -> None:
    with pytest.raises(BindError, match="FileDescriptorName"):
        inherited_sockets(environment(names))


def test_sockets_of_somebody_else() -> None:
    environ = environment("default:secure", pid=1)
    assert inherited_sockets(environ) == {}
    assert environ == {"OTHER": "kept"}
    assert inherited_sockets({}) == {}
