"""A link shows the same again: the text's marks, the map's window, the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from conftest import Open
from see import chosen, in_address, option, panel, token
from stage import TALK, TALK_TOKENS, Served

SEEN = """() => {
  const texts = (what) => [...document.querySelectorAll(what)].map((one) => one.innerText);
  return {
    tokens: [...document.querySelectorAll("[role=listbox] .token")].map((one) =>
      [one.dataset.at, [...one.classList].sort().join(" "), one.style.getPropertyValue("--glow")]),
    map: [...document.querySelectorAll(".leaflet-tile-pane canvas.leaflet-tile-loaded:not(.stale)")]
      .map((one) => [one.getBoundingClientRect().x, one.getBoundingClientRect().y, one.toDataURL()].join()).sort(),
    axes: texts(".tick"),
    panels: texts("section header, section footer"),
    numbers: texts("table"),
    pressed: [...document.querySelectorAll("[aria-pressed=true]")].map((one) => one.ariaLabel ?? one.innerText),
  };
}"""


def same(page: Page, expected: Any) -> None:
    """Wait until a page shows what another one did."""
    for _ in range(600):
        seen = page.evaluate(SEEN)
        if seen == expected:
            return
        page.wait_for_timeout(100)
    assert seen == expected


def settled(page: Page) -> Any:
    """What a page shows once it has what it asked for."""
    page.wait_for_load_state("networkidle")
    seen = page.evaluate(SEEN)
    same(page, seen)
    return seen


def test_a_map_and_a_text(opened: Open, server: Served) -> None:
    page = opened(server.link(run=TALK, call=1, head=2))
    chosen(page, TALK_TOKENS - 1)
    token(page, TALK_TOKENS - 20).click()
    token(page, TALK_TOKENS - 60).click(modifiers=["Shift"])
    option(panel(page, "Text"), "Group by", "word").click()
    option(panel(page, "Text"), "Scale", "log").click()
    option(panel(page, "Map"), "Value of a block", "mean").click()
    for _ in range(3):
        panel(page, "Map").get_by_role("button", name="Zoom in").click()
    page.get_by_role("application").press("ArrowDown")
    page.mouse.move(2, 2)
    in_address(page, "by=word", "scale=log", "block=mean", f"to={TALK_TOKENS - 20}", f"from={TALK_TOKENS - 60}")
    expected = settled(page)
    assert len(expected["map"]) > 0
    assert any(colour for _, _, colour in expected["tokens"])
    same(opened(page.url), expected)


@pytest.mark.parametrize("many", [4, 16])
def test_numbers_and_readers(opened: Open, server: Served, many: int) -> None:
    page = opened(server.link(run=TALK, call=2, head=4, to=500, side="numbers", each=many))
    chosen(page, 500)
    option(panel(page, "Text"), "Lens", "moved").click()
    option(panel(page, "Text"), "What glows", "readers").click()
    page.mouse.move(2, 2)
    in_address(page, "lens=moved", "show=readers", "side=numbers")
    expected = settled(page)
    assert len(expected["numbers"][0]) > 100
    option(page, "Colours of the page", "dark").click()
    other = opened(page.url)
    same(other, expected)
    expect(other.locator("html[data-theme]")).to_have_count(0)  # a matter of whoever looks


def test_a_head_that_is_not_there_is_told(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=2, head=77))
    expect(panel(page, "Text")).to_contain_text(
        "There is no head 77 of layer 2 here: all its heads are chosen instead."
    )
    panel(page, "Heads").get_by_role("button", name="Layer 2, head 1").click()
    expect(panel(page, "Text")).not_to_contain_text("There is no")


def test_what_an_address_has_wrong_is_as_usual(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=99, head="x", to=10**8, lens="love", window="1_2", theme="blue", each=5))
    chosen(page, TALK_TOKENS - 1)
    expect(panel(page, "Text")).to_contain_text(
        "There is no position 100,000,000 here: 733, the last, is chosen instead."
    )
    expect(panel(page, "Text")).to_contain_text("There is no call 99 here: layer 0 is chosen instead.")
    expect(page.get_by_role("img", name="Scale: weight, linear")).to_be_visible()
    told = page.get_by_role("status").filter(has_text="The address says")
    expect(told).to_contain_text("head=x; expected was a whole number")
    expect(told).to_contain_text("lens=love; expected was weight, moved, attribution or knockout: it is left out.")
    expect(told).to_contain_text("And 1 more of its words is left out.")
    page.get_by_role("button", name="close", exact=True).click()
    expect(told).to_have_count(0)
    page.evaluate("location.hash = '#/lesson?step=two'")
    expect(told).to_contain_text("step=two; expected was a whole number")
    page.evaluate("location.hash = '#/lesson?step=2'")
    expect(told).to_have_count(0)
