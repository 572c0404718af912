"""Check the page of a running demo in Chromium, and take screenshots of it. This program runs in the broker's
environment.

    .venv/bin/python pipelines/demo/pictures.py http://127.0.0.1:PORT/ FOLDER

It fails if the page reports an error, shows no figures, or does not fit on a phone's screen.
"""

import argparse
import base64
import shutil
import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

WAIT: Final = 60_000
"""Milliseconds to wait for a condition."""
MAX_BYTES: Final = 150_000
LIVE: Final = """count => ['Live', 'Stopping'].includes(document.getElementById('phase').textContent)
  && document.querySelectorAll('#windows tr').length >= count
  && document.querySelector('#alerts .device') && document.querySelector('#samples code')"""
DESKTOP: Final = {"width": 1280, "height": 1000}
PHONE: Final = {"width": 390, "height": 844}
PICTURES: Final = (
    ("light", DESKTOP, "light"),
    ("dark", DESKTOP, "dark"),
    ("phone", PHONE, "light"),
)


def picture(page: Page, file: Path) -> None:
    """Save a screenshot of the window as WebP, a format that Playwright itself cannot write."""
    chrome = page.context.new_cdp_session(page)
    taken = chrome.send("Page.captureScreenshot", {"format": "webp", "quality": 80})
    data = base64.b64decode(taken["data"])
    assert 5_000 < len(data) < MAX_BYTES, f"{file} has {len(data)} bytes"
    file.write_bytes(data)


def show(
    browser: Browser, url: str, folder: Path, windows: int, look: tuple[str, dict[str, int], str]
) -> None:
    """Open the page, wait until it shows live data, then check it and take a screenshot."""
    name, size, scheme = look
    problems: list[str] = []
    context = browser.new_context(
        viewport={"width": size["width"], "height": size["height"]},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url),
    )  # fmt: skip
    page.goto(url)
    page.wait_for_function(LIVE, arg=windows, timeout=WAIT + 20_000 * windows)
    page.wait_for_function("() => Number(document.documentElement.dataset.updated) > 0")
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= size["width"], f"{name}: the page is {width} pixels wide"
    picture(page, folder / f"demo-{name}.webp")
    assert not problems, f"{name}: {problems}"
    context.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=2, help="number of windows to wait for")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for look in PICTURES:
            show(browser, chosen.url, chosen.folder, chosen.windows, look)
        browser.close()


if __name__ == "__main__":
    main()
