"""Where things are on the page, by the names that people and screen readers know them by."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

DRAWN = """canvas => {
  if (!canvas.width || !canvas.height) return 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]},${data[at + 3]}`);
  return seen.size;
}"""


def in_list(page: Page, key: str) -> Locator:
    """The button in the list that opens a recording."""
    return page.locator("button.run").filter(has=page.locator("b").get_by_text(key, exact=True))


def text(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Text").last


def token(page: Page, position: int) -> Locator:
    """A token in the text; of one that goes on over lines its beginning."""
    return text(page).locator(f"[data-at='{position}']").first


def chosen(page: Page, position: int) -> None:
    expect(token(page, position)).to_have_class(re.compile(r"\bchosen\b"))


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def option(place: Page | Locator, group: str, name: str) -> Locator:
    """The word of a radio button."""
    return place.get_by_role("radiogroup", name=group).get_by_text(name, exact=True)


def segment(page: Page, group: str, name: str) -> Locator:
    """The word of a radio button of the lesson."""
    return page.get_by_role("group", name=group, exact=True).get_by_text(name, exact=True)


def detail(page: Page) -> Locator:
    """What is said below the text of one position."""
    return panel(page, "Text").locator(".detail .what")


def in_address(page: Page, *words: str) -> None:
    """The address holds what was chosen."""
    for word in words:
        expect(page).to_have_url(re.compile(rf"[?&]{re.escape(word)}(&|$)"))


def colours(canvas: Locator) -> int:
    """How many colours a canvas has: an empty one has one."""
    found: int = canvas.evaluate(DRAWN)
    return found


def go_to(page: Page, position: int, length: int) -> Locator:
    """Bring a position of a long text into sight, by the strip beside it."""
    strip = panel(page, "Text").locator(".strip")
    box = strip.bounding_box()
    assert box is not None
    strip.click(position={"x": box["width"] / 2, "y": box["height"] * (position + 0.5) / length})
    found = token(page, position)
    expect(found).to_be_attached()
    found.evaluate("token => token.scrollIntoView({ block: 'nearest' })")  # at once: a line may be drawn anew
    return found


def asked_elsewhere(page: Page, run: str, destination: int) -> None:
    """Let a measurement of all heads be asked for by another page than this one shows."""
    wish = {"run": run, "call": "all", "head": "all", "like": 1, "destination": destination, "target": None}
    page.evaluate("(wish) => fetch('api/jobs', { method: 'POST', body: JSON.stringify(wish) })", wish)
