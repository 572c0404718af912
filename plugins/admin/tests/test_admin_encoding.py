"""Large responses are encoded in parts, and the event loop serves other clients in between."""

import asyncio
import json
from typing import Any

import pytest
from admin_site import Site
from hookmq_admin.encoding import PART, encoded
from hookmq_admin.history import SERIES
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


async def parts(value: Any) -> list[bytes]:
    return [part async for part in encoded(value)]


@given(VALUES)
def test_the_parts_are_one_json_text(value: Any) -> None:
    assert json.loads(b"".join(asyncio.run(parts(value)))) == value


@pytest.mark.parametrize(
    "value",
    [
        {"items": [{"client_id": "x" * 60_000} for _ in range(100)], "cursor": ""},
        {"interval": 1.0, "times": [1.5] * 100_000, "series": {"a": [2.5] * 100_000}},
    ],
)
async def test_other_work_has_a_turn_after_each_part(value: Any) -> None:
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    found = await parts(value)
    done = True
    await task
    assert json.loads(b"".join(found)) == value
    assert len(found) > 10
    assert turns >= len(found) - 1
    assert max(map(len, found)) < 2 * PART


def test_long_client_ids_arrive_complete(site: Site) -> None:
    ids = [f"{number:02}" + "ä" * 32_000 for number in range(20)]
    clients = [site.client(client_id) for client_id in ids]
    answer = site.ask("GET", "/clients", params={"limit": "500"})
    assert set(ids) <= {one["client_id"] for one in answer.json["items"]}
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    for client in clients:
        site.thread.call(client.drop)
    found = site.ask("GET", "/history", params={"limit": "20000"}).json
    assert {name: len(values) for name, values in found["series"].items()} == dict.fromkeys(
        SERIES, len(found["times"])
    )
