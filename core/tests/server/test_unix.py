"""Unix sockets: permissions, and what stands at the path already."""

import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hookmq.errors import BindError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mqtt.sock"


async def test_exchange_and_permissions(listen: Any, dial: Any, broker: Any, path: Path) -> None:
    listener = await listen(type="unix", bind=str(path), mode="0620")
    assert listener.address == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o620
    reader, writer = await dial(listener)
    connection = await broker.next()
    assert connection.peer == ("unix", 0, "unix", None)
    connection.echo = True
    writer.write(b"local")
    assert await reader.readexactly(5) == b"local"
    connection.wire.write(b"bye")
    connection.wire.close()
    assert await reader.read() == b"bye"
    writer.close()
    await connection.until_ended()
    await listener.close()
    assert not path.exists()


async def test_socket_of_a_dead_process_is_replaced(
    listen: Any, dial: Any, broker: Any, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    await dial(await listen(type="unix", bind=str(path)))
    await broker.next()


async def test_socket_somebody_listens_on_stays(
    listen: Any, dial: Any, broker: Any, path: Path
) -> None:
    first = await listen(type="unix", bind=str(path))
    with pytest.raises(BindError, match=r"mqtt\.sock: address already in use"):
        await listen(type="unix", bind=str(path))
    await dial(first)
    await broker.next()


async def test_a_file_stays(listen: Any, path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(BindError, match="no socket"):
        await listen(type="unix", bind=str(path))
    assert path.read_text() == "precious"


async def test_missing_folder(listen: Any, path: Path) -> None:
    with pytest.raises(BindError, match="no such file"):
        await listen(type="unix", bind=str(path / "deeper"))


async def test_a_successors_socket_is_not_removed(listen: Any, path: Path) -> None:
    listener = await listen(type="unix", bind=str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        await listener.close()
        assert path.exists()


async def test_inherited_socket_is_used_and_not_removed(
    listen: Any, dial: Any, broker: Any, path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as lent:
        lent.bind(str(path))
        lent.listen()
        listener = await listen(type="unix", bind="elsewhere", inherited=lent.dup())
        await dial(listener)
        await broker.next()
        await listener.close()
        assert path.exists()


async def test_proxy_header_over_a_unix_socket(
    listen: Any, dial: Any, broker: Any, path: Path
) -> None:
    listener = await listen(type="unix", bind=str(path), proxy_protocol="any")
    _, writer = await dial(listener)
    writer.write(b"PROXY TCP4 192.0.2.7 198.51.100.1 40001 1883\r\n!")
    connection = await broker.next()
    await connection.until_received(b"!")
    assert connection.peer == ("192.0.2.7", 40001, "unix", None)
