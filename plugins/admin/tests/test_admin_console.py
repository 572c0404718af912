"""The console: its files are served without a token and under a strict policy, and it uses routes that exist."""

import gzip
import re
from importlib.resources import files
from typing import Any

import pytest
from admin_site import Site
from hookmq_admin.openapi import ROUTES
from hookmq_admin.pages import FILES

CONSOLE = files("hookmq_admin").joinpath("console")


def get(site: Site, path: str, **headers: str) -> tuple[int, Any, bytes]:
    async def send() -> tuple[int, Any, bytes]:
        async with site.http.get(site.url + path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    return site.run(send())


@pytest.mark.parametrize("path", FILES)
def test_a_file_needs_no_token_and_has_a_strict_policy(site: Site, path: str) -> None:
    name, kind = FILES[path]
    status, headers, data = get(site, path)
    assert (status, data) == (200, CONSOLE.joinpath(name).read_bytes())
    assert headers["Content-Type"] == f"{kind}; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    status, _, data = get(site, path, **{"If-None-Match": headers["ETag"]})
    assert (status, data) == (304, b"")


def test_the_page_loads_only_its_own_files() -> None:
    page = CONSOLE.joinpath("index.html").read_text("utf-8")
    served = {path.removeprefix("/") for path in FILES}
    loaded = set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"data:,"}
    assert loaded == served - {""}
    assert not re.search(r"\son\w+=|style=|<script>|https?:", page)


def test_text_from_the_broker_is_never_html() -> None:
    code = CONSOLE.joinpath("app.js").read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", code)
    assert not re.search(r"localStorage|cookie", code)


def test_the_console_uses_routes_that_exist() -> None:
    code = CONSOLE.joinpath("app.js").read_text("utf-8")
    code = code.replace("`${path}", '"/clients/{client_id}').replace("`", '"')
    code = re.sub(r'", path([,)])', r'", "/clients/{client_id}"\1', code)
    used = set(re.findall(r'(?:ask|open)\("(\w+)", "([^"]+)"', code))
    assert len(used) > 15
    assert used <= {(route.method, route.path) for route in ROUTES}


def test_the_console_is_small() -> None:
    size = sum(len(gzip.compress(CONSOLE.joinpath(name).read_bytes())) for name, _ in FILES.values())  # fmt: skip
    assert size < 20_000
