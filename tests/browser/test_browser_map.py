"""The map: from the whole to single cells, what is under the pointer, and what is no weight."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

import wherefrom
from conftest import NARROW, Open
from see import colours, in_address, option, panel
from shown import digits
from stage import TALK, Served


def map_of(page: Page) -> Locator:
    return page.get_by_role("application", name="Map of weights")


def drawn(page: Page) -> None:
    """Tiles are here, and they are not empty."""
    tiles = panel(page, "Map").locator("canvas.leaflet-tile-loaded:not(.stale)")
    expect(tiles.first).to_be_visible()
    assert max(colours(tile) for tile in tiles.all()) > 3


def point(page: Page, right: float = 0, down: float = 0) -> None:
    """Move the pointer to the middle of the map, or so many pixels from it."""
    box = map_of(page).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 + right + 0.1, box["y"] + box["height"] / 2 + down + 0.1)


def said(page: Page) -> Locator:
    return panel(page, "Map").locator(".said")


@pytest.fixture
def whole(page: Page, server: Served) -> Page:
    page.goto(server.link(run=TALK, call=1, head=2))
    drawn(page)
    return page


def test_the_whole_is_drawn_and_its_scale_is_the_largest_weight(whole: Page, shelf) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    largest = float(wherefrom.weights(recording, layer=1, head=2).values.max())
    expect(whole.get_by_role("img", name=f"linear, from 0 to {digits(largest, 3)}").last).to_be_visible()
    expect(panel(whole, "Map").get_by_text("max of 2 × 2 weights")).to_be_visible()


def test_buttons_keys_and_wheel_zoom_and_the_pointer_pans(whole: Page) -> None:
    place = panel(whole, "Map")
    place.get_by_role("button", name="Zoom in").click()
    expect(whole).to_have_url(re.compile(r"window=[\d.]+_[\d.]+_0"))
    place.get_by_role("button", name="Zoom out").click()
    expect(whole).not_to_have_url(re.compile("window"))  # no further out than the whole
    map_of(whole).focus()
    whole.keyboard.press("+")
    expect(whole).to_have_url(re.compile(r"_0(&|$)"))
    before = whole.url
    whole.keyboard.press("ArrowRight")
    expect(whole).not_to_have_url(before)
    whole.keyboard.press("0")
    expect(whole).not_to_have_url(re.compile("window"))
    point(whole)
    whole.mouse.wheel(0, -200)
    expect(whole).to_have_url(re.compile(r"_[1-9](&|$)"))
    whole.keyboard.press("-")  # the wheel leaves the keys with the map
    expect(whole).to_have_url(re.compile(r"_0(&|$)"))
    before = whole.url
    point(whole)
    whole.mouse.down()
    point(whole, 60, 40)
    whole.mouse.up()
    expect(whole).not_to_have_url(before)
    place.get_by_role("button", name="Show the whole map").click()
    expect(whole).not_to_have_url(re.compile("window"))
    drawn(whole)


def test_single_cells_have_names(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, window="700.5_690.5_4"))
    drawn(page)
    expect(panel(page, "Map").locator(".names.down bdi").first).to_be_visible()
    for _ in range(6):
        panel(page, "Map").get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"_6(&|$)"))
    assert 2 <= panel(page, "Map").locator(".names.across bdi").count() < 12
    drawn(page)


def test_blocks_and_scales(whole: Page) -> None:
    place = panel(whole, "Map")
    before = [tile.evaluate("one => one.toDataURL()") for tile in place.locator("canvas.leaflet-tile").all()]
    option(place, "Value of a block", "mean").click()
    in_address(whole, "block=mean")
    expect(place.get_by_text("mean of 2 × 2 weights")).to_be_visible()
    drawn(whole)
    mean = [tile.evaluate("one => one.toDataURL()") for tile in place.locator("canvas.leaflet-tile").all()]
    assert mean != before
    option(place, "Scale", "log").click()
    in_address(whole, "scale=log", "block=mean")
    expect(place.get_by_role("img", name="log scale")).to_be_visible()
    drawn(whole)
    assert mean != [tile.evaluate("one => one.toDataURL()") for tile in place.locator("canvas.leaflet-tile").all()]


def test_under_the_pointer_stands_the_weight_and_both_tokens(page: Page, server: Served, shelf) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    page.goto(server.link(run=TALK, call=1, head=2, window="700.5_690.5_4"))
    drawn(page)
    for rows, columns in ((0, 0), (-3, 5), (7, -8)):
        point(page, 16 * columns, 16 * rows)
        row, column = 700 + rows, 690 + columns
        window = wherefrom.weights(
            recording, layer=1, head=2, destinations=range(row, row + 1), sources=range(column, column + 1)
        )
        expect(said(page)).to_contain_text(
            re.compile(rf"row\s+{row}\s.*reads from column\s+{column}\s.*{digits(float(window.values[0, 0]), 6)}")
        )


def test_a_block_says_its_value_and_the_cell_its_own(whole: Page) -> None:
    point(whole, -100, 60)
    expect(said(whole)).to_contain_text("largest of its 2 × 2 block")


def test_a_click_chooses_both_ends(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, window="700.5_690.5_4"))
    drawn(page)
    point(page)
    page.mouse.down()
    page.mouse.up()
    in_address(page, "to=700", "from=690")
    expect(panel(page, "Map").locator(".band")).to_have_count(2)


@pytest.mark.parametrize(
    ("run", "row", "column", "words"),
    [
        (TALK, 100, 200, "not permitted"),
        ("empty rows", 1, 0, "empty row"),
        ("empty rows", 4, 1, "not permitted"),
        ("some rows", 1, 0, "not recorded"),
    ],
)
def test_what_is_no_weight_says_so(page: Page, server: Served, run: str, row: int, column: int, words: str) -> None:
    page.goto(server.link(run=run, call=0, head=1, window=f"{row + 0.5}_{column + 0.5}_6"))
    expect(panel(page, "Map").locator("canvas.leaflet-tile-loaded").first).to_be_visible()
    point(page)
    expect(said(page)).to_contain_text(re.compile(rf"row\s+{row}\s.*column\s+{column}\s.*{words}"))


def test_the_legend_shows_every_mark(whole: Page) -> None:
    marks = panel(whole, "Map").get_by_role("listitem")
    expect(marks).to_have_text(["not permitted", "empty row", "not recorded", "above the scale", "below it"])
    seen = {mark.locator("canvas").evaluate("one => one.toDataURL()") for mark in marks.all()}
    assert len(seen) == 5


def test_another_head_is_shown_at_the_same_place(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, window="700.5_690.5_4"))
    drawn(page)
    page.get_by_role("button", name="Layer 2, head 5").click()
    in_address(page, "call=2", "head=5", "window=700.5_690.5_4")
    drawn(page)


def test_a_wheel_goes_no_further_out_than_the_whole_and_then_scrolls_the_page(opened: Open, server: Served) -> None:
    page = opened(server.link(run=TALK, call=1, head=2, window="700.5_690.5_0"), viewport=NARROW)
    drawn(page)
    page.get_by_role("application").evaluate("one => one.scrollIntoView({ block: 'end' })")
    scrolled = page.get_by_role("main").evaluate("one => one.scrollTop")
    point(page)
    page.mouse.wheel(0, 400)
    expect(page).not_to_have_url(re.compile("window"))
    assert page.get_by_role("main").evaluate("one => one.scrollTop") == scrolled
    for _ in range(3):
        page.mouse.wheel(0, 100)
    page.wait_for_function("from => document.querySelector('main').scrollTop > from", arg=scrolled)
    expect(page).not_to_have_url(re.compile("window"))


def test_cells_begin_beside_and_below_the_names(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, window="2_2_6"))
    drawn(page)
    place = panel(page, "Map")
    cells, across, down = (
        one.bounding_box() for one in (map_of(page), place.locator(".names.across"), place.locator(".names.down"))
    )
    assert cells is not None
    assert across is not None
    assert down is not None
    assert cells["y"] >= across["y"] + across["height"] - 0.5
    assert cells["x"] >= down["x"] + down["width"] - 0.5
