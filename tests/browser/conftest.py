"""One browser and one server for all tests of the page; a page that fails its test by what it should never do.

Where there is no browser these tests are skipped, unless WHEREFROM_BROWSER=required says that they must run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from stage import AXE, CHROMIUM, Served, fill, served

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}
POLICY = """addEventListener("securitypolicyviolation",
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""
expect.set_options(timeout=20_000)


def lacking(what: str) -> NoReturn:
    """Skip, or fail where the tests are required."""
    if os.environ.get("WHEREFROM_BROWSER") == "required":
        pytest.fail(f"WHEREFROM_BROWSER=required, and there is no {what}")
    pytest.skip(f"there is no {what}, and WHEREFROM_BROWSER does not say that it is required")


@dataclass
class Watch:
    """What a page did that no page may do.

    Attributes:
        host: whom it may ask.
        faults: what it did, in words.
        foreseen: patterns of what this test provokes.
    """

    host: str
    faults: list[str] = field(default_factory=list)
    foreseen: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        page.on("request", lambda request: self._asked(request.url))
        page.on("console", lambda said: said.type == "error" and self.faults.append(f"console: {said.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"page error: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("crash", lambda _: self.faults.append("the page crashed"))
        page.add_init_script(POLICY)

    def foresee(self, *patterns: str) -> None:
        self.foreseen.extend(patterns)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.host, "data:", f"blob:{self.host}")):
            self.faults.append(f"asked another host: {url}")

    @property
    def unforeseen(self) -> list[str]:
        return [fault for fault in self.faults if not any(re.search(pattern, fault) for pattern in self.foreseen)]


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    if CHROMIUM is None:
        lacking("chromium")
    started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield started
    started.close()


@pytest.fixture(scope="session")
def shelf(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings to look at; made only where there is something to look with."""
    return fill(tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="session")
def server(shelf: Path) -> Iterator[Served]:
    with served("--folder", shelf) as started:
        yield started


@pytest.fixture(scope="session")
def axe() -> str:
    """The text of axe-core."""
    if not AXE.is_file():
        lacking("axe-core (make web installs it)")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture
def watch(server: Served) -> Iterator[Watch]:
    seen = Watch(server.address)
    yield seen
    assert seen.unforeseen == []


@pytest.fixture
def opened(browser: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """Open an address in a browser that knows nothing of the pages before."""
    contexts = []

    def open_page(address: str = "", **how: Any) -> Page:
        context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **how})
        contexts.append(context)
        page = context.new_page()
        watch.over(page)
        if address:
            page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page(opened: Callable[..., Page]) -> Page:
    return opened()
