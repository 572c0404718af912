"""Test that the console's files are served without a token and under a strict policy, and use existing routes. The
tests in `tests/console` run the page in a browser.
"""

import gzip
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from admin_site import Site
from hookmq.plugin import ConfigError, ListenerSnapshot
from hookmq_admin.openapi import ROUTES
from hookmq_admin.pages import FILES, KINDS, connectable
from hookmq_admin.plugin import AdminPlugin
from hookmq_testing import make_plugin

PACKAGE = files("hookmq_admin")
SOURCES = {name: PACKAGE.joinpath(name).read_text("utf-8") for name in FILES.values()}
CODE = {name: text for name, text in SOURCES.items() if name.endswith(".js")}


def get(site: Site, path: str, **headers: str) -> tuple[int, Any, bytes]:
    async def send() -> tuple[int, Any, bytes]:
        async with site.http.get(site.url + path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()

    return site.run(send())


@pytest.mark.parametrize("path", FILES)
def test_a_file_needs_no_token_and_has_a_strict_policy(site: Site, path: str) -> None:
    name = FILES[path]
    status, headers, data = get(site, path)
    assert (status, data) == (200, SOURCES[name].encode())
    assert headers["Content-Type"] == f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    status, _, data = get(site, path, **{"If-None-Match": headers["ETag"]})
    assert (status, data) == (304, b"")


def test_the_page_may_connect_to_the_websocket_listeners_only(site: Site) -> None:
    policy = get(site, "/")[1]["Content-Security-Policy"]
    assert "; connect-src 'self'; " in policy
    found = [
        ListenerSnapshot("tcp", "tcp", "127.0.0.1:1883", 0, 9),
        ListenerSnapshot("ws", "ws", "127.0.0.1:8083", 0, 9),
        ListenerSnapshot("wss", "wss", "[::]:8084", 0, 9),
    ]
    assert connectable("a.example:9", found) == "'self' ws://a.example:8083 wss://a.example:8084"
    assert (
        connectable("[::1]", found, ["ws://b/c"])
        == "'self' ws://b/c ws://[::1]:8083 wss://[::1]:8084"
    )
    for host in ("a b", "x; script-src *", "x,y", "*", "a/b", ""):
        assert connectable(host, found) == "'self'"


@pytest.mark.parametrize("address", ["http://x", "ws://a;b", "ws://a b", "ws://", "wss://a'b"])
def test_an_address_of_the_configuration_cannot_change_the_policy(address: str) -> None:
    with pytest.raises(ConfigError, match="console_sockets"):
        make_plugin(AdminPlugin, {"console_sockets": [address]}, "admin")
    make_plugin(AdminPlugin, {"console_sockets": ["wss://broker.example.com:443/mqtt"]}, "admin")


def test_the_page_loads_only_its_own_files() -> None:
    page = SOURCES["console/index.html"]
    loaded = set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"data:,"}
    assert {f"/{path}" for path in loaded} < FILES.keys()
    assert not re.search(r"\son\w+=|style=|<script>|https?:", page)
    imported = {
        str((Path("/") / name).parent.joinpath(path).resolve())
        for name, text in CODE.items()
        for path in re.findall(r'^import .* from "(\.[^"]+)";$', text, re.MULTILINE)
    }
    assert imported | {"/console/app.js"} == {f"/{name}" for name in CODE}


@pytest.mark.parametrize("name", CODE)
def test_text_from_the_broker_is_never_html(name: str) -> None:
    code = CODE[name]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", code
    )
    assert not re.search(r"localStorage|cookie", code)
    assert code.count("\n") < 400


def test_the_console_uses_routes_that_exist() -> None:
    text = "\n".join(CODE.values())
    calls = re.findall(r'(?:ask|askTagged|open)\("([A-Z]+)", (?:"([^"]+)"|at`([^`]+)`)', text)
    used = {(method, re.sub(r"\$\{[\w.]+\}", "{}", path or part)) for method, path, part in calls}
    assert len(used) > 25
    assert used <= {(route.method, re.sub(r"\{\w+\}", "{}", route.path)) for route in ROUTES}


def test_the_console_is_small() -> None:
    assert sum(len(gzip.compress(text.encode())) for text in SOURCES.values()) < 64_000
