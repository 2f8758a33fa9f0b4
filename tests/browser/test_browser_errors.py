"""What goes wrong is said in a sentence, where it went wrong; the page is never blank."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from conftest import Open
from see import chosen, in_list, panel, text
from stage import BROKEN, TALK, TALK_TOKENS, Served, served
from watching import REFUSED, Watch

GONE = "The server does not answer. Is `wherefrom explore` still running?"


def test_a_broken_recording(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee(REFUSED)
    page.goto(server.address)
    why = "expected 1,240 bytes, got 40. Copy the recording again from where it is whole"
    expect(page.get_by_role("listitem").filter(has_text=BROKEN)).to_contain_text(why)
    page.goto(server.link(run=BROKEN))
    said = page.get_by_role("alert")
    expect(said).to_contain_text(why)
    said.get_by_role("button", name="all recordings").click()
    in_list(page, TALK).click()
    chosen(page, TALK_TOKENS - 1)


def test_a_recording_that_is_not_there(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee(REFUSED)
    page.goto(server.link(run="nothing"))
    expect(page.get_by_role("alert")).to_contain_text("the recording: expected one that is shown here, got nothing")


def test_an_address_that_is_not_there(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee(REFUSED)
    answer = page.goto(f"{server.address}nowhere")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_text("There is no such page.")).to_be_visible()


@pytest.mark.parametrize(("length", "words"), [(1200, "at most 1,000 characters"), (40_000, "at most 32,768 bytes")])
def test_what_is_looked_for_is_too_long(page: Page, server: Served, watch: Watch, length: int, words: str) -> None:
    watch.foresee(REFUSED)
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    page.get_by_role("searchbox").fill("x" * length)
    expect(page.get_by_role("search").get_by_role("status")).to_contain_text(words)
    page.get_by_role("searchbox").fill("council")
    expect(page.get_by_role("search").get_by_role("status")).to_contain_text("1 of")


def test_the_server_is_gone_while_a_page_is_open(opened: Open, shelf: Path, watch: Watch) -> None:
    watch.foresee("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    with served(shelf / f"{TALK}.wherefrom") as own:
        watch.host = own.address
        page = opened(own.address)
        chosen(page, TALK_TOKENS - 1)  # a single recording needs no list
        expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)
        page.wait_for_load_state("networkidle")
    text(page).press("Home")
    expect(panel(page, "Text").get_by_role("alert")).to_contain_text(GONE)
    page.get_by_role("button", name="Layer 0, head 3").click()
    expect(panel(page, "Map").get_by_role("alert").first).to_contain_text(GONE)
    page.keyboard.press("n")
    expect(panel(page, "Numbers").get_by_role("alert")).to_contain_text(GONE)
    expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)  # what was here stays
    page.get_by_role("button", name="wherefrom").click()
    expect(page.get_by_role("alert")).to_contain_text(GONE)
    page.get_by_role("banner").get_by_role("button", name="lesson").click()
    expect(page.get_by_role("alert")).to_contain_text("The lesson could not be loaded.")


def test_a_text_that_could_not_be_had_is_asked_for_again(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee("ERR_FAILED")
    page.route("**/api/tokens*", lambda route: route.abort())
    page.goto(server.link(run=TALK))
    said = panel(page, "Text").get_by_role("alert").first
    expect(said).to_contain_text(GONE)
    page.wait_for_load_state("networkidle")  # whatever else asks for tokens has asked too
    page.unroute("**/api/tokens*")
    said.get_by_role("button", name="try again").click()
    chosen(page, TALK_TOKENS - 1)


def test_an_answer_that_is_no_answer(page: Page, server: Served) -> None:
    page.route("**/api/row*", lambda route: route.fulfill(content_type="application/octet-stream", body=b"\x07" * 40))
    page.goto(server.link(run=TALK))
    expect(panel(page, "Text").get_by_role("alert")).to_contain_text("answer")


def test_an_empty_shelf_says_how_to_fill_it(opened: Open, tmp_path: Path, watch: Watch) -> None:
    with served("--folder", tmp_path) as own:
        watch.host = own.address
        page = opened(own.address)
        expect(page.get_by_role("status")).to_contain_text("There is no recording here yet. Make one with")


def test_a_reading_that_takes_long_says_so(page: Page, server: Served) -> None:
    waiting = []
    page.route("**/api/run?*", lambda route: waiting.append(route))
    page.goto(server.link(run=TALK))
    expect(page.get_by_role("status").first).to_contain_text(f"Opening {TALK}")
    for route in waiting:
        route.continue_()
    chosen(page, TALK_TOKENS - 1)
