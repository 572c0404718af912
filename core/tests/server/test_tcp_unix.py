"""Test Unix sockets: permissions and inherited sockets."""

import socket
import stat
from pathlib import Path
from typing import Any

import pytest


class Spot(str):
    """A path, with the checks that tests need."""

    __slots__ = ()

    def there(self) -> bool:
        return Path(self).exists()

    def mode(self) -> int:
        return stat.S_IMODE(Path(self).stat().st_mode)

    def put(self, text: str) -> None:
        Path(self).write_text(text)

    def text(self) -> str:
        return Path(self).read_text()

    def remove(self) -> None:
        Path(self).unlink()


@pytest.fixture
def path(tmp_path: Path) -> Spot:
    return Spot(str(tmp_path / "mqtt.sock"))


async def test_exchange_and_permissions(listen: Any, dial: Any, broker: Any, path: Spot) -> None:
    listener = await listen(type="unix", bind=path, mode="0620")
    assert listener.address == path
    assert path.mode() == 0o620
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
    assert not path.there()


async def test_inherited_socket_is_used_and_not_removed(
    listen: Any, dial: Any, broker: Any, path: Spot
) -> None:
    with socket.socket(socket.AF_UNIX) as lent:
        lent.bind(path)
        lent.listen()
        listener = await listen(type="unix", bind="elsewhere", inherited=lent.dup())
        await dial(listener)
        await broker.next()
        await listener.close()
        assert path.there()


async def test_proxy_header_over_a_unix_socket(
    listen: Any, dial: Any, broker: Any, path: Spot
) -> None:
    listener = await listen(type="unix", bind=path, proxy_protocol="any")
    _, writer = await dial(listener)
    writer.write(b"PROXY TCP4 192.0.2.7 198.51.100.1 40001 1883\r\n!")
    connection = await broker.next()
    await connection.until_received(b"!")
    assert connection.peer == ("192.0.2.7", 40001, "unix", None)
