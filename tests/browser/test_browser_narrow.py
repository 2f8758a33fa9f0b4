"""A narrow window: each view scrolls within itself, and nothing makes the document longer than the window."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from conftest import NARROW, Open
from stage import OTHER, TALK, Served

HEAD = {"run": TALK, "call": 1, "head": 2}
VIEWS: list[dict[str, object]] = [
    {},
    HEAD,
    {**HEAD, "side": "numbers"},
    {**HEAD, "side": "evidence"},
    {**HEAD, "page": "compare", "beside": OTHER},
    *({"page": "lesson", "step": step} for step in range(1, 7)),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: "-".join(map(str, view.values())) or "list")
def test_no_view_scrolls_into_emptiness(opened: Open, server: Served, view: dict[str, object]) -> None:
    page = opened(server.link(**view), viewport=NARROW)
    expect(page.get_by_role("heading").nth(1)).to_be_attached()
    page.wait_for_load_state("networkidle")
    high, wide = page.evaluate("[document.scrollingElement.scrollHeight, document.scrollingElement.scrollWidth]")
    assert (high, wide) == (NARROW["height"], NARROW["width"])
