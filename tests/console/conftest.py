"""One broker with clients, and one browser, shared by the tests of a module.

Both are closed at the end of the module. While Playwright runs, its event loop occupies the thread, so no other test
could run its own.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_browser import Address, Operated, View, chromium, operated
from playwright.sync_api import Browser, sync_playwright

REFUSED = r"Failed to load resource: the server responded with a status of 4\d\d"
"""The message that Chromium writes for each response with an error status."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium. Playwright's own browsers are not downloaded."""
    path = chromium()
    if path is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Run a broker with 130 online clients, offline clients with queues, a shared subscription and retained messages."""
    folder: Path = tmp_path_factory.mktemp("console")
    with operated(folder, accounts=True) as site:
        for role in ("viewer", "operator"):
            site.token(role)
        site.ask("POST", "/groups", {"name": "staff"})
        rule = {"allow": ["publish"], "topic": ["light/#"]}
        site.ask("POST", "/users", {"name": "nora", "groups": ["staff"], "rules": [rule]})
        for number in range(130):
            client = site.client(f"lamp-{number:03}", username=f"floor-{number % 4}")
            if number < 20:
                site.thread.run(client.subscribe([f"light/{number}/set", "alarm/#"], 1))
            elif number < 25:
                site.thread.run(client.subscribe("$share/team/work/+", 1))
        for number in range(6):
            site.offline(f"meter-{number}", f"meter/{number}/#")
            for count in range(30 if number < 2 else 0):
                site.ask(
                    "POST",
                    "/publish",
                    {"topic": f"meter/{number}/set", "payload": f"{count}", "qos": 1},
                )
        for number in range(8):
            payload = f'{{"temperature": {18 + number}.5, "unit": "C"}}'
            site.ask(
                "POST",
                "/publish",
                {"topic": f"state/room-{number}", "payload": payload, "retain": True},
            )
        worker = site.client("worker-1", auto_ack=False)
        site.thread.run(worker.subscribe("$queue/jobs/#", 1))
        victim = site.client("worker-2", auto_ack=False)
        site.thread.run(victim.subscribe("$queue/jobs/#", 1))
        for number in range(12):
            site.publish("$queue/jobs/resize", b'{"image": %d}' % number)
        site.thread.run(victim.message())
        site.thread.call(victim.drop)
        yield site


@pytest.fixture
def tab(browser: Browser, site: Operated) -> Iterator[Callable[..., View]]:
    """Yield a function that opens tabs. When the test ends, no page may have reported an error or a policy violation."""
    views: list[View] = []
    allowed: list[str] = []

    def open_tab(*expected: str, at: Address = site, **options: Any) -> View:
        allowed.extend(expected)
        views.append(View(browser, at, **options))
        return views[-1]

    yield open_tab
    for view in views:
        view.close(*allowed)
