"""Screenshots of the console for the manual. `make pictures` writes them to docs/images; otherwise, only their size
is tested.
"""

import base64
import json
import os
from functools import partial
from pathlib import Path

import pytest
from admin_browser import Open, Operated, View
from sink_broker import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

MAX_BYTES = 150_000
WINDOW = {"width": 1280, "height": 820}
FOLDER = os.environ.get("HOOKMQ_PICTURES", "")
SAMPLES = 45 if FOLDER else 3
"""The number of history samples in the charts, one per second."""


def save(view: View, name: str, folder: Path) -> None:
    """Save a screenshot of the window as WebP, which Playwright cannot write itself."""
    view.page.locator("main").focus()
    view.page.mouse.move(0, 0)
    view.page.evaluate("() => scrollTo(0, 0)")
    chrome = view.context.new_cdp_session(view.page)
    data = base64.b64decode(
        chrome.send("Page.captureScreenshot", {"format": "webp", "quality": 80})["data"]
    )
    file = folder / f"console-{name}.webp"
    file.write_bytes(data)
    assert 5_000 < len(data) < MAX_BYTES, f"{file} has {len(data)} bytes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder to write the pictures to."""
    return Path(FOLDER).absolute() if FOLDER else tmp_path


def test_picture_of_the_overview(tab: Open, site: Operated, folder: Path) -> None:

    def sampled_after(time: float) -> bool:
        return bool(site.ask("GET", "/history?limit=1")["times"][0] != time)

    view = tab(viewport=WINDOW).sign_in()
    for number in range(SAMPLES):
        seen = site.ask("GET", "/history?limit=1")["times"][0]
        site.burst(f"light/{number % 3}/set", 60 + (number * 37) % 90)
        until(partial(sampled_after, seen), "the next sample")
    points = "count => document.querySelector('figure polyline').points.length >= count"
    view.until(points, SAMPLES)
    save(view, "overview", folder)


def test_picture_of_a_client(tab: Open, folder: Path) -> None:
    view = tab(viewport=WINDOW, color_scheme="dark").sign_in()
    view.go("client/meter-1", "meter-1")
    view.count("Queue", 25)
    save(view, "client", folder)


def test_picture_of_topics(tab: Open, site: Operated, folder: Path) -> None:
    view = tab(viewport=WINDOW).sign_in()
    view.go("topics", "Topics")
    view.submit("Live messages", "Follow", Filter="plant/#")
    view.says("Following plant/#.")
    for number in range(24):
        payload = json.dumps(
            {"speed": 1200 + number * 7, "temperature": 40 + number / 4, "ok": number != 9}
        )
        body = {
            "topic": f"plant/line-{number % 3}/machine-{number % 4}/state",
            "payload": payload,
            "qos": 1,
        }
        site.ask("POST", "/publish", body)
    view.until("() => document.querySelector('.count').dataset.total === '24'")
    for name in ("plant", "plant/line-1", "plant/line-1/machine-2", "plant/line-1/machine-2/state"):
        view.page.locator(f"[data-topic='{name}']").click()
    view.sees(view.page.locator("pre.message", has_text="speed"))
    save(view, "topics", folder)


def test_picture_of_a_queue(tab: Open, folder: Path) -> None:
    view = tab(viewport=WINDOW).sign_in()
    view.go("queue/jobs", "jobs")
    view.count("Groups", 2)
    view.sees(view.page.get_by_role("link", name="worker-1", exact=True))
    save(view, "queue", folder)


def test_picture_of_a_sink(tab: Open, site: Operated, folder: Path) -> None:
    for number in range(6):
        payload = b"ERR 7" if number == 2 else b'{"celsius": %d}' % (20 + number)
        site.publish(f"line/press-{number}", payload)
    until(lambda: not site.ask("GET", "/sinks/plant")["lag"], "writing")
    view = tab(viewport=WINDOW).sign_in()
    view.go("sink/plant", "plant")
    view.count("Lanes", 2)
    view.sees(view.rows("Dead letters").get_by_role("cell", name="ERR 7"))
    save(view, "sinks", folder)
