"""Test a listener: the address on which it listens, and the socket that it may inherit."""

import socket
from typing import Any

import pytest
from hookmq.model.errors import BindError


@pytest.mark.parametrize("bind", ["*:0", "[::1]:0", "localhost:0"])
async def test_every_way_to_write_an_address(
    listen: Any, dial: Any, broker: Any, bind: str
) -> None:
    if bind != "localhost:0" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    listener = await listen(bind=bind)
    port = listener.address.rsplit(":", 1)[1]
    host = "::1" if bind.startswith("[") else "127.0.0.1"
    _, writer = await dial(f"[{host}]:{port}")
    connection = await broker.next()
    assert connection.peer.host == host  # not ::ffff:127.0.0.1
    writer.close()


async def test_inherited_socket_is_used(listen: Any, dial: Any, broker: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        listener = await listen(bind="127.0.0.1:1", inherited=sock.dup())
    assert listener.address == f"127.0.0.1:{port}"
    _, writer = await dial(listener)
    connection = await broker.next()
    accepted = connection.wire._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()


async def test_inherited_socket_of_another_kind_is_refused(listen: Any) -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(BindError, match="AF_UNIX"):
        await listen(inherited=left)
