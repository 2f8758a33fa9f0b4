"""Tokens and names that would run, turn around or hide: readable, and inert, in every view."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from see import chosen, in_address, in_list, option, panel, text, token
from stage import HOSTILE, HOSTILE_TOKENS, Served
from watching import REFUSED


@pytest.fixture(autouse=True)
def inert(page: Page):
    """Whatever was looked at: nothing ran, and nothing of a token became part of the page."""
    yield
    assert page.evaluate("window.hit") is None
    for made in ("img", "iframe", "object", "embed", "script:not([src])", "[onerror]", "[style*='expression']"):
        expect(page.locator(made)).to_have_count(0)


def test_in_the_list_and_the_title(page: Page, server: Served) -> None:
    page.goto(server.address)
    own = in_list(page, HOSTILE)
    expect(own.locator("b")).to_have_text(HOSTILE)
    expect(own).to_contain_text(f"{HOSTILE} · {len(HOSTILE_TOKENS)} tokens")  # its model
    own.click()
    chosen(page, len(HOSTILE_TOKENS) - 1)
    expect(page).to_have_title(f"{HOSTILE} \u00b7 wherefrom")
    expect(page.get_by_role("banner").locator(".key")).to_have_text(HOSTILE)
    expect(page.get_by_role("banner").locator(".facts")).to_contain_text(HOSTILE)


def test_in_the_text_each_stands_in_its_place(page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE, head=0))
    chosen(page, len(HOSTILE_TOKENS) - 1)
    shown = text(page)
    for at, own in enumerate(HOSTILE_TOKENS):
        if own.strip():
            expect(token(page, at)).to_be_visible()
            assert own in "".join(shown.locator(f"[data-at='{at}'] .sign").all_inner_texts())
    # What turns direction turns nothing but itself: within a line a token stands right of the one before it.
    lines = [line.locator(".token") for line in shown.locator(".line").all()]
    for line in lines:
        boxes = [one.bounding_box() for one in line.all()]
        lefts = [box["x"] for box in boxes if box is not None]
        assert lefts == sorted(lefts)
        assert all(box is not None and box["width"] > 2 for box in boxes)
    token(page, 0).click()
    expect(panel(page, "Text").locator(".next")).to_contain_text("</script>")
    token(page, 8).click()
    token(page, 0).hover()
    expect(panel(page, "Text").locator(".what")).to_contain_text("</script>")


def test_it_is_found(page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE))
    chosen(page, len(HOSTILE_TOKENS) - 1)
    page.get_by_role("searchbox").fill(HOSTILE)
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")
    expect(token(page, 0)).to_have_class(re.compile("found"))
    page.get_by_role("searchbox").fill("中文")
    expect(page.get_by_role("search").get_by_role("status")).to_have_text("1 of 1")


def test_in_the_map_and_the_heads(page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE, call=1, head=2, to=9, window="5_5_5", **{"from": 0}))
    names = panel(page, "Map").locator(".names.down bdi")
    expect(names.first).to_have_text(re.compile(r"^</script><"))
    expect(panel(page, "Map").get_by_text("中文").first).to_be_visible()
    expect(panel(page, "Map").locator(".said")).to_contain_text("</script>")
    expect(panel(page, "Heads").locator(".told")).to_contain_text(HOSTILE)  # the call's name
    expect(panel(page, "Heads").get_by_role("button", name=f"{HOSTILE}: all its heads together")).to_be_visible()


def test_in_the_numbers_and_the_lesson(page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE, call=1, head=2, to=9, side="numbers", each=16))
    numbers = panel(page, "Numbers")
    expect(numbers.get_by_role("rowheader", name=re.compile("script><img")).first).to_be_visible()
    expect(numbers).to_contain_text("中文")
    numbers.get_by_role("button", name="carry into the lesson").click()
    expect(page.get_by_text(f"{HOSTILE}, layer 1, head 2").first).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("中文")


def test_in_the_evidence(page: Page, server: Served, watch) -> None:
    watch.foresee(REFUSED)
    page.goto(server.link(run=HOSTILE, call=1, head=2, to=9, side="evidence"))
    evidence = panel(page, "Evidence")
    row = evidence.get_by_role("row").filter(has=page.get_by_title("Choose source 0", exact=True))
    expect(row).to_contain_text("</script")
    expect(evidence).to_contain_text("中文")
    expect(evidence).to_contain_text(f"the model that made the recording, {HOSTILE}")
    page.goto(server.link(run=HOSTILE, call=1, head=2, to=8, side="evidence", target=HOSTILE))
    expect(evidence).to_contain_text("the model that made the recording")


def test_beside_another(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=HOSTILE, beside="empty rows", call=0, head=0, to=6))
    first = panel(page, f"A: {HOSTILE}")
    expect(first.locator("[data-at='0']").first).to_contain_text("</script>")
    expect(first).to_contain_text("中文")
    expect(page.get_by_role("main")).to_contain_text("of the first 7 tokens differ")
    page.get_by_role("button", name="swap").click()
    expect(panel(page, f"B: {HOSTILE}")).to_be_visible()


def test_in_a_link_to_what_is_not_there(page: Page, server: Served, watch) -> None:
    watch.foresee("the server responded with a status of 4")
    page.goto(server.link(run=f"{HOSTILE}\u202e中文"))
    expect(page.get_by_role("alert")).to_contain_text("<img src=x onerror=window.hit=1>")
    page.goto(f"{server.address}#/{HOSTILE}?to={HOSTILE}&window={HOSTILE}&side={HOSTILE}")
    expect(page.get_by_role("heading", name="Recordings")).to_be_visible()


def test_grouped_and_from_the_other_side(page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE, show="readers", **{"from": 0}))
    chosen(page, 0)
    for unit in ("word", "sentence", "line"):
        option(panel(page, "Text"), "Group by", unit).click()
        in_address(page, f"by={unit}")
    expect(text(page).locator(".token[style*='--glow']").first).to_be_visible()
