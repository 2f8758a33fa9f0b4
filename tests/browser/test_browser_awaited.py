"""While an answer is awaited, lost, or of something else: no number is shown as what it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, Route, expect

import wherefrom
from conftest import Open
from see import asked_elsewhere, chosen, detail, in_address, option, panel, token
from shown import digits
from stage import OTHER, TALK, TALK_TOKENS, THOUSANDS, Served, served
from watching import REFUSED, Watch
from wherefrom.questions import row_of_weights

AT, FROM = 500, 480
GONE = "The server does not answer."


@contextmanager
def kept_waiting(page: Page, pattern: str) -> Iterator[list[Route]]:
    """Keep back the server's answers, until the end of the block."""
    waiting: list[Route] = []
    page.route(pattern, lambda route: waiting.append(route))
    yield waiting
    for route in waiting:
        route.continue_()
    page.unroute(pattern)


def test_the_weight_under_the_map_is_never_of_the_head_before(page: Page, server: Served, shelf: Path) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    page.goto(server.link(run=TALK, call=1, head=2, to=AT, **{"from": FROM}))
    exact = [float(row_of_weights(recording.calls[1], AT)[head, FROM]) for head in (2, 3)]
    said = panel(page, "Map").get_by_role("status").filter(has_text="reads from column")
    expect(said).to_contain_text(digits(exact[0], 6))
    with kept_waiting(page, "**/api/pair*") as waiting:
        page.keyboard.press("}")
        in_address(page, "head=3")
        expect(said).to_contain_text("…")
        expect(said).not_to_contain_text(digits(exact[0], 6))
        while not waiting:
            page.wait_for_timeout(20)
        expect(said).to_contain_text("…")
    expect(said).to_contain_text(digits(exact[1], 6))


def test_a_difference_is_of_the_same_head_in_both(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=1, head=2, to=AT, **{"from": FROM}))
    edge = page.locator(".edge")
    expect(edge).not_to_contain_text("…")
    with kept_waiting(page, "**/api/pair*run=other*") as waiting:
        page.keyboard.press("}")
        in_address(page, "head=3")
        expect(edge.locator(".side").nth(0)).not_to_contain_text("…")
        expect(edge.locator(".side").nth(1)).to_contain_text("…")
        expect(edge.locator(".side").nth(2)).to_contain_text("none")
        while not waiting:
            page.wait_for_timeout(20)
    expect(edge).not_to_contain_text("…")


def test_what_is_no_value_says_which_kind_of_none_it_is(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, every="yes", first="without", to=AT))
    text = panel(page, "Text")
    token(page, AT).press("Home")
    page.goto(server.link(run=TALK, every="yes", first="without", to=AT, **{"from": 0}))
    expect(detail(page)).to_contain_text("left out: the others are shares of the rest")
    expect(detail(page)).not_to_contain_text("may not read")
    page.goto(server.link(run="some rows", call=0, head=1, show="readers", to=1, **{"from": 0}))
    expect(detail(page)).to_contain_text("not recorded")
    expect(text).not_to_contain_text("may not read")


def test_shares_of_different_rows_are_not_added_up(page: Page, server: Served, shelf: Path) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    page.goto(server.link(run=TALK, call=1, head=2, show="readers", by="line", to=TALK_TOKENS - 1, **{"from": 0}))
    expect(detail(page)).to_contain_text("weight, largest of the line")
    shown = re.search(r"([\d.]+) weight, largest", detail(page).inner_text())
    first = re.search(r"(\d+)\u2013\d+", detail(page).inner_text())
    assert shown is not None
    assert first is not None
    rows = range(int(first[1]), TALK_TOKENS)
    largest = max(float(row_of_weights(recording.calls[1], row)[2, 0]) for row in rows)
    assert shown[1] == digits(largest)


def test_what_belongs_to_a_token_is_not_said_of_a_word(page: Page, server: Served, watch: Watch) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, to=AT, **{"from": FROM}))
    expect(detail(page)).to_contain_text("weight")
    with kept_waiting(page, "**/api/units*"):
        option(panel(page, "Text"), "Group by", "word").click()
        in_address(page, "by=word")
        expect(detail(page)).to_contain_text("…")
        expect(detail(page)).not_to_contain_text("sum of the word")
    expect(detail(page)).to_contain_text("sum of the word")
    with kept_waiting(page, "**/api/units*"):
        option(panel(page, "Text"), "Group by", "sentence").click()
        expect(detail(page)).to_contain_text("…")
        expect(detail(page)).not_to_contain_text("sum of the")
    watch.foresee("ERR_FAILED")
    page.route("**/api/units*", lambda route: route.abort())
    option(panel(page, "Text"), "Group by", "line").click()
    said = panel(page, "Text").get_by_role("alert")
    expect(said).to_contain_text(GONE)
    page.unroute("**/api/units*")
    said.get_by_role("button", name="try again").click()
    expect(detail(page)).to_contain_text("sum of the line")


def test_found_places_are_of_the_words_that_are_there(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    page.get_by_role("searchbox").fill("council")
    said = page.get_by_role("search").get_by_role("status")
    expect(said).to_contain_text("1 of")
    page.get_by_role("searchbox").press("Enter")
    expect(said).to_contain_text("2 of")
    with kept_waiting(page, "**/api/find*"):
        page.get_by_role("searchbox").fill("harbour")
        page.get_by_role("searchbox").press("Enter")
        page.get_by_role("searchbox").press("Enter")
        expect(said).to_have_text("looking")
        page.get_by_role("searchbox").press("Enter")
    expect(said).to_contain_text("1 of")


def test_numbers_are_under_the_name_of_their_head(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, to=AT, side="numbers"))
    numbers = panel(page, "Numbers")
    expect(numbers.locator("table")).to_be_visible()
    with kept_waiting(page, "**/api/numbers*"):
        page.keyboard.press("}")
        in_address(page, "head=3")
        expect(numbers.locator("table")).to_have_count(0)
    expect(numbers.locator("table")).to_be_visible()


def test_work_that_waits_says_what_it_waits_for_now(page: Page, server: Served) -> None:
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1940, side="evidence"))
    own = panel(page, "Evidence")
    expect(own.locator(".words")).to_contain_text("Not measured yet")
    with server.standing_still():
        for destination in (1941, 1942):
            asked_elsewhere(page, THOUSANDS, destination)
        page.keyboard.press("m")
        expect(own.locator(".other")).to_contain_text(re.compile(r"Behind position\s+1,941"))
        own.get_by_role("button", name="cancel that").click()
        expect(own.locator(".other")).to_contain_text(re.compile(r"Behind position\s+1,942"))
        own.get_by_role("button", name="cancel that").click()
        expect(own.locator(".other")).to_have_count(0)
        own.get_by_role("button", name="cancel", exact=True).click()
        expect(own.locator(".words")).to_contain_text("Cancelled")


def test_work_goes_on_though_an_answer_was_lost(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee("ERR_FAILED")
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1939, side="evidence"))
    own = panel(page, "Evidence")
    expect(own.locator(".words")).to_contain_text("Not measured yet")
    lost: list[Route] = []

    def lose(route: Route) -> None:
        lost.append(route)
        route.abort() if len(lost) <= 2 else route.continue_()

    page.route("**/api/job?*", lose)
    page.keyboard.press("m")
    expect(own.locator(".words")).to_contain_text("Measured in", timeout=120_000)
    assert len(lost) > 2


def test_what_was_lost_is_asked_for_again(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee("ERR_FAILED")
    page.route("**/api/runs*", lambda route: route.abort())
    page.goto(server.address)
    expect(page.get_by_role("alert")).to_contain_text(GONE)
    page.unroute("**/api/runs*")
    page.get_by_role("button", name="try again").click()
    expect(page.locator("button.run").first).to_be_visible()

    lost = ("heads", "measured", "row", "numbers", "tile")
    for name in lost:
        page.route(f"**/api/{name}?*", lambda route: route.abort())
    page.goto(server.link(run=TALK, call=1, head=2, to=AT, side="evidence"))
    for name in ("Heads", "Text", "Evidence"):
        expect(panel(page, name).get_by_text(GONE).first).to_be_visible()
    for name in lost:
        page.unroute(f"**/api/{name}?*")
    for name in ("Heads", "Text", "Evidence"):
        panel(page, name).get_by_role("button", name="try again").first.click()
    expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)
    expect(detail(page)).to_be_visible()
    expect(panel(page, "Evidence").locator(".words")).to_contain_text("Not measured yet")
    expect(page.get_by_text(GONE)).to_have_count(0)


def test_a_text_in_memory_is_not_taken_for_another_servers(opened: Open, watch: Watch) -> None:
    texts = "The capital of France is Paris. The capital of Italy is", "Anna and Peter crossed the bridge and met Clara"
    with served("--text", texts[0]) as one:
        watch.host = one.address
        page = opened(one.link(run="text", call=1, head=2, to=8))
        chosen(page, 8)
        expect(panel(page, "Heads").locator(".thumb").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        port = one.address.rstrip("/").rpartition(":")[2]
    watch.foresee("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", REFUSED)
    with served("--text", texts[1], port=port) as two:
        assert two.address == one.address
        token(page, 5).click()
        expect(panel(page, "Text").get_by_role("alert")).to_contain_text(
            "one that was written since. Load the page again."
        )
