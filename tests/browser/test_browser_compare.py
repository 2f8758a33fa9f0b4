"""Two recordings side by side: from the page and by a link, on one scale, with both numbers under the pointer."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

import wherefrom
from conftest import Open
from see import colours, in_address, panel
from shown import digits
from stage import BROKEN, OTHER, TALK, Served
from watching import REFUSED, Watch
from wherefrom.recording import open_recording


def test_two_recordings_are_compared_on_one_scale(page: Page, server: Served, opened: Open) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, to=300))
    page.get_by_role("button", name=re.compile("compare with")).click()
    page.get_by_role("button", name=re.compile(OTHER)).first.click()
    in_address(page, "run=talk", "beside=other+words")
    expect(page.get_by_text("the same scale in both texts")).to_be_visible()
    expect(page.get_by_text("the same scale in both maps")).to_be_visible()
    expect(page.locator(".differ")).to_contain_text("734")
    again = opened(page.url)
    for one in (page, again):
        for title in (f"A: {TALK}", f"B: {OTHER}"):
            expect(panel(one, title)).to_be_visible()
        expect(one.locator(".differ")).to_have_text(page.locator(".differ").inner_text())


def test_both_weights_under_the_pointer_are_pythons(page: Page, server: Served, shelf: Path) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=1, head=2, to=300, window="299.5_5.5_5"))
    map_ = panel(page, "A: map").get_by_role("application")
    expect(map_).to_be_visible()
    box = map_.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    edge = page.locator(".foot.stuck")
    expect(edge.locator("b.number")).to_have_count(3)  # both, and their difference
    row, column = (int(number) for number in edge.locator(".number").all_text_contents()[:2])
    expected = []
    for name in (TALK, OTHER):
        recording = open_recording(shelf / f"{name}.wherefrom")
        window = wherefrom.weights(
            recording, layer=1, head=2, destinations=range(row, row + 1), sources=range(column, column + 1)
        )
        expected.append(digits(float(window.values[0, 0]), 6))
    assert edge.locator("b.number").all_text_contents()[:2] == expected
    assert expected[0] != expected[1]
    for title in ("A: map", "B: map"):
        tile = panel(page, title).locator(".leaflet-tile").first
        expect(tile).to_be_visible()
        assert colours(tile) > 1


def test_a_comparison_is_turned_round_and_closed(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=1, head=2))
    page.get_by_role("button", name="swap").click()
    in_address(page, "run=other+words", "beside=talk")
    expect(panel(page, f"A: {OTHER}")).to_be_visible()
    page.get_by_role("button", name="close the comparison").click()
    expect(panel(page, "Heads")).to_be_visible()
    page.go_back()
    expect(panel(page, f"A: {OTHER}")).to_be_visible()


def test_a_second_one_that_is_broken_or_gone_says_so(page: Page, server: Served, watch: Watch) -> None:
    watch.foresee(REFUSED)
    for beside, words in ((BROKEN, "expected"), ("nowhere", "one that is shown here")):
        page.goto(server.link(page="compare", run=TALK, beside=beside))
        expect(page.get_by_text(f"{beside}, the second recording:")).to_contain_text(words)
        page.get_by_role("button", name="close the comparison").click()
        expect(panel(page, "Text")).to_be_visible()


WHERE = """map => {
  const at = map.getBoundingClientRect();
  const { x, y, width } = map.querySelector("canvas.leaflet-tile").getBoundingClientRect();
  return [x - at.x, y - at.y, width];
}"""


def test_both_maps_show_the_same_window_and_no_more_than_all(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=1, head=2, window="300_300_2"))
    maps = [panel(page, title).get_by_role("application") for title in ("A: map", "B: map")]
    for one in maps:
        expect(one.locator("canvas.leaflet-tile-loaded").first).to_be_visible()
    box = maps[0].bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 70, box["y"] + 90)
    for turn in (-150, 400, 800, 800, 800, -100):
        page.mouse.wheel(0, turn)
        page.wait_for_timeout(500)
        first, second = (one.evaluate(WHERE) for one in maps)
        assert first == second
        found = re.search(r"window=[\d.]+_[\d.]+_(-?[\d.]+)", page.url)
        assert found is None or float(found[1]) > -2.5
    expect(page).to_have_url(re.compile("window="))


def test_a_call_that_one_of_them_lacks_and_a_lens_that_is_of_one_alone(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=77, head=9, lens="moved"))
    expect(page.locator(".differ")).to_contain_text("There is no call 77 in both: layer 0 is chosen instead.")
    expect(page.locator(".differ")).to_contain_text("There is no head 9 of layer 0 in both")
    page.keyboard.press("3")
    page.keyboard.press("l")
    in_address(page, "lens=moved", "scale=log")


def test_a_position_that_one_of_them_lacks_is_told(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=TALK, beside=OTHER, call=1, head=2, to=720))
    expect(page.locator(".differ")).to_contain_text("There is no position 720 in both: 699, the last that both have")


def test_it_opens_on_what_both_have(page: Page, server: Served) -> None:
    page.goto(server.link(page="compare", run=OTHER, beside=TALK, call=1, head=2))
    shown = panel(page, "B: map")
    expect(shown.get_by_role("button", name="Show what both maps have")).to_be_visible()
    expect(shown.locator(".columns .tick").last).not_to_have_text("734")
