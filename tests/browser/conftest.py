"""One browser and one server for all tests of the page; a page that fails its test by what it should never do.

Where there is no browser these tests are skipped, unless WHEREFROM_BROWSER=required says that they must run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

from stage import AXE, CHROMIUM, MODEL, Served, fill, served
from watching import Watch

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}
Open = Callable[..., Page]
"""Opens an address, or an empty page, in a browser that knows nothing of the pages before."""
expect.set_options(timeout=60_000)


def lacking(what: str) -> NoReturn:
    """Skip, or fail where the tests are required."""
    if os.environ.get("WHEREFROM_BROWSER") == "required":
        pytest.fail(f"WHEREFROM_BROWSER=required, and there is no {what}")
    pytest.skip(f"there is no {what}, and WHEREFROM_BROWSER does not say that it is required")


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
    with served("--folder", shelf, "--model", shelf.parent / MODEL, hold=shelf.parent / "hold") as started:
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
def opened(browser: Browser, watch: Watch) -> Iterator[Open]:
    contexts = []

    def open_page(address: str = "", **how: Any) -> Page:
        context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        watch.over(page)
        if address:
            page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page(opened: Open) -> Page:
    return opened()
