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
ALWAYS = {
    "answers": ("random_edges_in_the_text_the_map_and_the_numbers",),
    "axe": ("nothing_serious_on_a_narrow_page",),
    "compare": ("two_recordings_are_compared_on_one_scale", "both_weights_under_the_pointer_are_pythons"),
    "errors": ("a_broken_recording", "the_server_is_gone_while_a_page_is_open"),
    "evidence": ("what_is_measured_is_what_python_measures", "work_is_told_and_can_be_cancelled_and_done_again"),
    "export": ("it_shows_what_the_server_shows",),
    "first_picture": (),
    "heads": ("every_head_is_drawn_and_named_by_its_kind", "a_head_is_chosen_and_told"),
    "hostile": (
        *("in_the_list_and_the_title", "in_the_text_each_stands_in_its_place", "in_the_map_and_the_heads"),
        *("in_the_evidence", "beside_another"),
    ),
    "lesson": ("the_steps_follow_one_another_and_the_address_holds_them", "a_real_head_is_carried_into_it"),
    "links": ("a_map_and_a_text",),
    "list": ("every_recording_is_listed_and_opens",),
    "map": (
        *("the_whole_is_drawn_and_its_scale_is_the_largest_weight", "what_is_no_weight_says_so"),
        "under_the_pointer_stands_the_weight_and_both_tokens",
    ),
    "numbers": ("so_many_sources_stand_one_by_one",),
    "text": (
        *("the_last_token_is_chosen_and_its_sources_glow", "what_comes_later_may_not_be_read", "the_keyboard_chooses"),
        "readers_of_a_source",
    ),
}
"""Of each file the tests that always run, some of every view; all of a file that names none. The others are long."""
expect.set_options(timeout=60_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run in a long run alone."""
    for item in items:
        file = item.path.stem.removeprefix("test_browser_")
        name = item.name.partition("[")[0].removeprefix("test_")
        if item.path.parent == Path(__file__).parent and name not in (ALWAYS.get(file, ("",)) or (name,)):
            item.add_marker(pytest.mark.long)


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
    with served("--folder", shelf, "--model", shelf.parent / MODEL) as started:
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
