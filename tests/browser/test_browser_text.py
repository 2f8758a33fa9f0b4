"""The text: what is chosen, what glows, and what is said of it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from stage import LONG, LONG_TOKENS, TALK, TALK_TOKENS, THOUSANDS, Served


def text_of(page: Page):
    return page.get_by_role("listbox", name="Text")


def token(page: Page, position: int):
    return text_of(page).locator(f"[data-at='{position}']").first


def option(page: Page, group: str, name: str):
    """The visible word of a radio button."""
    return page.get_by_role("radiogroup", name=group).first.get_by_text(name, exact=True)


def hash_has(page: Page, *words: str) -> None:
    for word in words:
        expect(page).to_have_url(re.compile(re.escape(word)))


def test_the_last_token_is_chosen_and_its_sources_glow(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK))
    last = token(page, TALK_TOKENS - 1)
    expect(last).to_have_class(re.compile(r"\bchosen\b"))
    expect(last).to_be_in_viewport()
    expect(last).to_have_attribute("aria-selected", "true")
    glowing = text_of(page).locator(".token[style*='background-color']")
    expect(glowing.first).to_be_visible()
    expect(page.get_by_text("predicted next here")).to_be_visible()
    expect(page.get_by_role("img", name="Scale: weight, linear, from 0 to")).to_be_visible()
