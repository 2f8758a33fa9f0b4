"""Accessibility of every view, light and dark, by axe-core: nothing serious, nothing critical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from playwright.sync_api import Page, expect

from conftest import Open
from see import chosen, panel
from stage import OTHER, TALK, Served

SERIOUS = """async (rules) => (await axe.run(document, { resultTypes: ["violations"], ...rules })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 4).map(({ target, any, all, none }) =>
    `${target.join(" ")} (${[...any, ...all, ...none].map(({ message }) => message)[0] ?? ""})`).join("; ")}`)"""


def text_and_map(page: Page) -> None:
    chosen(page, 700)
    expect(panel(page, "Map").locator("canvas.leaflet-tile-loaded").first).to_be_visible()
    expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)


def numbers(page: Page) -> None:
    expect(panel(page, "Numbers").get_by_role("button", name="carry into the lesson")).to_be_enabled()


def ranked(page: Page) -> None:
    expect(panel(page, "Heads").locator(".thumb")).to_have_count(18)
    panel(page, "Heads").get_by_role("combobox").select_option("entropy")
    expect(panel(page, "Heads").locator(".place")).to_have_count(18)


def helped(page: Page) -> None:
    chosen(page, 700)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


def searched(page: Page) -> None:
    chosen(page, 700)
    page.get_by_role("searchbox").fill("council")
    expect(page.get_by_role("search").get_by_role("status")).to_contain_text("1 of")


def evidence(page: Page) -> None:
    expect(panel(page, "Evidence").locator("tbody tr").first).to_be_visible()


def compared(page: Page) -> None:
    for name in ("A: map", "B: map"):
        expect(panel(page, name).locator("canvas.leaflet-tile-loaded").first).to_be_visible()


def heading(page: Page) -> None:
    expect(page.get_by_role("heading").first).to_be_visible()


STILL = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await Promise.allSettled(document.getAnimations().map(({ finished }) => finished));
}"""
"""Colours that are on their way are nobody's."""
SCHEMES: dict[Literal["light", "dark"], dict[str, object]] = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
"""What is looked for: in the dark only colours are others."""
Ready = Callable[[Page], None]
HERE = {"run": TALK, "call": 1, "to": 700}
VIEWS: dict[str, tuple[dict[str, object], Ready]] = {
    "list": ({}, heading),
    "text and map": (HERE | {"head": 2, "from": 650}, text_and_map),
    "map of cells": (HERE | {"head": 2, "window": "700.5_690.5_5"}, text_and_map),
    "readers, moved": (HERE | {"head": 2, "from": 600, "show": "readers", "lens": "moved"}, ranked),
    "all heads, searched": (HERE, searched),
    "numbers": (HERE | {"head": 2, "side": "numbers"}, numbers),
    "evidence": (HERE | {"head": 2, "side": "evidence"}, evidence),
    "comparison": ({"page": "compare", "run": TALK, "beside": OTHER, "call": 1, "head": 2, "to": 600}, compared),
    "help": (HERE, helped),
    "empty row": ({"run": "empty rows", "call": 0, "head": 1, "to": 1, "side": "numbers"}, heading),
    **{f"lesson {step}": ({"page": "lesson", "step": step}, heading) for step in range(1, 7)},
}


def test_nothing_serious_in_any_view(page: Page, server: Served, axe: str) -> None:
    page.goto(server.address)
    page.evaluate(axe)
    found: list[str] = []
    for view, (link, ready) in VIEWS.items():
        page.goto(server.link(**link))  # the same page: axe stays in it
        ready(page)
        for scheme, rules in SCHEMES.items():
            page.emulate_media(color_scheme=scheme)
            page.evaluate(STILL)
            found += [f"{view}, {scheme}: {what}" for what in page.evaluate(SERIOUS, rules)]
        page.keyboard.press("Escape")
    assert not found, "\n".join(found)


def test_nothing_serious_on_a_narrow_page(opened: Open, server: Served, axe: str) -> None:
    page = opened(server.link(**HERE, head=2), viewport={"width": 390, "height": 844})
    chosen(page, 700)
    panel(page, "Map").scroll_into_view_if_needed()
    expect(panel(page, "Map").locator("canvas.leaflet-tile-loaded").first).to_be_visible()
    page.evaluate(axe)
    assert page.evaluate(SERIOUS, {}) == []
