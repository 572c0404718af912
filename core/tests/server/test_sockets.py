"""Test how listening sockets are opened at an address, or refused with a reason."""

import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hookmq.model.errors import BindError


async def test_address_in_use_names_address_and_reason(listen: Any) -> None:
    first = await listen()
    with pytest.raises(BindError, match="in use") as caught:
        await listen(name="second", bind=first.address)
    assert caught.value.exit_code == 4
    assert first.address in str(caught.value)
    assert "'second'" in str(caught.value)


@pytest.mark.parametrize("bind", ["192.0.2.1:0", "no.such.host.invalid:0"])
async def test_foreign_address_is_a_bind_error(listen: Any, bind: str) -> None:
    with pytest.raises(BindError, match=bind):
        await listen(bind=bind)


class Spot(str):
    """A path with the checks that tests need."""

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


async def test_socket_of_a_dead_process_is_replaced(
    listen: Any, dial: Any, broker: Any, path: Spot
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    await dial(await listen(type="unix", bind=path))
    await broker.next()


async def test_socket_somebody_listens_on_stays(
    listen: Any, dial: Any, broker: Any, path: Spot
) -> None:
    first = await listen(type="unix", bind=path)
    with pytest.raises(BindError, match=r"mqtt\.sock: address already in use"):
        await listen(type="unix", bind=path)
    await dial(first)
    await broker.next()


async def test_a_file_stays(listen: Any, path: Spot) -> None:
    path.put("precious")
    with pytest.raises(BindError, match="not a socket"):
        await listen(type="unix", bind=path)
    assert path.text() == "precious"


async def test_missing_folder(listen: Any, path: Spot) -> None:
    with pytest.raises(BindError, match="no such file"):
        await listen(type="unix", bind=path + "/deeper")


async def test_a_successors_socket_is_not_removed(listen: Any, path: Spot) -> None:
    listener = await listen(type="unix", bind=path)
    path.remove()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(path)
        await listener.close()
        assert path.there()
