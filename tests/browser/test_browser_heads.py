"""The heads: every one a small picture with its kind; chosen, ranked, filtered; and what has none says why."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

import wherefrom
from conftest import Open
from see import chosen, colours, in_address, option, panel
from stage import TALK, TALK_TOKENS, Served
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import kind_of


@pytest.fixture
def heads(page: Page, server: Served):
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)
    return panel(page, "Heads")


@pytest.fixture(scope="module")
def rows(shelf):
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    repeats = repeats_of(recording, recording.call(0))
    return [{**row, "kind": kind_of(row, repeats)} for row in wherefrom.heads(recording)]


def test_every_head_is_drawn_and_named_by_its_kind(heads, rows) -> None:
    for row in rows:
        name = f"Layer {row['layer']}, head {row['head']}: {row['kind'].name}"
        picture = heads.get_by_role("button", name=name, exact=True)
        expect(picture).to_be_visible()
        assert colours(picture.locator("canvas")) > 3


def test_a_head_is_chosen_and_told(page: Page, heads, rows) -> None:
    heads.get_by_role("button", name="Layer 0, head 4").click()
    in_address(page, "call=0", "head=4")
    expect(heads.get_by_role("button", name="Layer 0, head 4")).to_have_attribute("aria-pressed", "true")
    expect(panel(page, "Map")).to_contain_text("layer 0, head 4")
    expect(heads.locator(".thumb")).to_have_count(18)
    kind = next(row for row in rows if (row["layer"], row["head"]) == (0, 4))["kind"]
    page.mouse.move(5, 5)
    expect(heads.locator(".told")).to_contain_text(f"0.4 {kind.name} {kind.why}")
    heads.get_by_role("button", name="Layer 2, head 1").hover()
    expect(heads.locator(".told")).to_contain_text("2.1")
    heads.get_by_role("button", name="blocks.1.attention: all its heads together").click()
    in_address(page, "call=1")
    expect(heads.locator(".told")).to_contain_text("All heads of blocks.1.attention together.")
    heads.get_by_role("button", name="all layers").click()
    in_address(page, "every=yes")
    expect(panel(page, "Text")).to_contain_text("mean over 18 heads")
    heads.get_by_role("button", name="all layers").click()
    expect(page).not_to_have_url(re.compile("every"))


def test_heads_are_ranked_by_a_figure(page: Page, heads, rows) -> None:
    heads.get_by_role("combobox", name="Order of the heads").select_option("previous")
    places = heads.locator(".place")
    expect(places).to_have_count(18)
    expected = sorted(rows, key=lambda row: -row["previous"])
    assert places.locator(".number").all_text_contents() == [f"{row['layer']}.{row['head']}" for row in expected]
    places.nth(2).get_by_role("button").click()
    in_address(page, f"head={expected[2]['head']}")
    heads.get_by_role("combobox").select_option(label="by layer")
    expect(places).to_have_count(0)
    expect(heads.locator(".thumb")).to_have_count(18)


def test_heads_are_filtered_by_kind(heads, rows) -> None:
    kinds = [row["kind"].name for row in rows]
    kind = kinds[0]
    button = heads.get_by_role("group", name="Show only heads of a kind").get_by_role("button", name=kind)
    expect(button).to_contain_text(str(kinds.count(kind)))
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(heads.locator(".thumb.faint")).to_have_count(18 - kinds.count(kind))
    heads.get_by_role("combobox").select_option("entropy")
    expect(heads.locator(".place")).to_have_count(kinds.count(kind))
    button.click()
    expect(heads.locator(".place")).to_have_count(18)


def test_what_has_no_picture_says_why(page: Page, server: Served) -> None:
    page.goto(server.link(run="some rows"))
    own = panel(page, "Heads")
    expect(own.get_by_text("destination").first).to_be_visible()
    expect(own.locator(".thumb.dotted")).to_have_count(2)
    page.goto(server.link(run="everything"))
    expect(own.locator(".gap").first).to_have_text("not recorded")


def test_without_a_head_the_map_offers_them(page: Page, heads) -> None:
    expect(panel(page, "Map")).to_contain_text("All heads of layer 1 are chosen. Choose one to see its map")
    panel(page, "Map").get_by_role("button", name="Layer 1, head 3").click()
    in_address(page, "head=3")
    expect(panel(page, "Map").get_by_role("application")).to_be_visible()


def test_heads_are_one_stop_of_tab_and_arrows_go_through_them(page: Page, heads) -> None:
    heads.get_by_role("combobox", name="Order of the heads").focus()
    grid = heads.get_by_role("toolbar")
    expect(grid.locator("[tabindex='0']")).to_have_count(1)
    grid.locator("[tabindex='0']").focus()
    for key, name in (
        ("ArrowRight", "Layer 1, head 0"),
        ("ArrowDown", "Layer 2, head 0"),
        ("ArrowRight", "Layer 2, head 1"),
        ("ArrowUp", "Layer 1, head 1"),
        ("ArrowUp", "Layer 0, head 1"),
        ("ArrowUp", "Layer 0, head 1"),
        ("ArrowLeft", "Layer 0, head 0"),
    ):
        page.keyboard.press(key)
        expect(grid.get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Enter")
    in_address(page, "call=0", "head=0")
    page.keyboard.press("Tab")
    assert not grid.evaluate("one => one.contains(document.activeElement)")


def test_who_chose_with_a_pointer_goes_on_with_the_page_s_keys(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=0, to=400))
    panel(page, "Heads").get_by_role("button", name="Layer 1, head 2").click()
    in_address(page, "head=2")
    page.keyboard.press("ArrowLeft")
    in_address(page, "head=2", "to=399")
    option(panel(page, "Text"), "Scale", "log").click()
    in_address(page, "scale=log")
    page.keyboard.press("ArrowLeft")
    in_address(page, "scale=log", "to=398")


def test_a_head_chosen_elsewhere_comes_into_sight(opened: Open, server: Served) -> None:
    page = opened(server.link(run=TALK, call=2, head=5), viewport={"width": 1280, "height": 300})
    head = panel(page, "Heads").get_by_role("button", name="Layer 2, head 5")
    expect(head).to_be_in_viewport(ratio=1)
    for _ in range(2):
        page.keyboard.press("[")
    expect(panel(page, "Heads").get_by_role("button", name="Layer 0, head 5")).to_be_in_viewport(ratio=1)
    panel(page, "Heads").get_by_role("combobox").select_option("entropy")
    expect(panel(page, "Heads").locator(".thumb.chosen")).to_be_in_viewport(ratio=1)
