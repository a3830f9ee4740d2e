"""A page that is opened in Chromium, and everything that it complains of and asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, ViewportSize, sync_playwright
from tests.support.overlaid_pages import profile_text, verification_text
from tests.support.small_file import SmallFile

import modelexport as mx

CHROMIUM = shutil.which("chromium")
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Where everything is checked there has to be a browser; elsewhere one can do without.
    if CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("chromium is not installed")
    assert CHROMIUM is not None, "chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Reader:
    """A page that is opened, with all that it complains of and asks for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def open(self, path: Path, address: str = "") -> Page:
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_selector("body[data-ready]")
        return self.page


@pytest.fixture
def reader(browser: Browser) -> Iterator[Reader]:
    page = browser.new_page(viewport=WIDE)
    page.set_default_timeout(60_000)
    found = Reader(page)
    yield found
    page.close()
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:", "http://127.0.0.1"))] == []


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small file, with times and errors laid over it."""
    folder = tmp_path_factory.mktemp("shown")
    path = SmallFile().write(folder / "small.onnx")
    overlays = []
    for name, text in (("profile", profile_text()), ("verify", verification_text())):
        overlays.append(folder / f"{name}.json")
        overlays[-1].write_text(text)
    return mx.view(path, overlays=overlays).path


def drawn_texts(page: Page, where: str) -> list[str]:
    return [text.strip() for text in page.locator(f"{where} svg text").all_text_contents() if text.strip()]
