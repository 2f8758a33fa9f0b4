"""The first picture: text and the first heads are drawn before much has been transferred, however long the text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from conftest import Open
from see import chosen, colours, panel, text
from stage import LONG, LONG_TOKENS, TALK, TALK_TOKENS, Served

MOST_BYTES = 1_000_000


@pytest.mark.parametrize(("run", "length"), [(TALK, TALK_TOKENS), (LONG, LONG_TOKENS)])
def test_it_is_drawn_before_a_megabyte(opened: Open, server: Served, run: str, length: int) -> None:
    page = opened()
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    moved: list[float] = []
    network.on("Network.loadingFinished", lambda event: moved.append(event["encodedDataLength"]))
    page.goto(server.link(run=run))
    chosen(page, length - 1)
    expect(text(page).locator(".token[style*='--glow']").first).to_be_visible()
    first = panel(page, "Heads").locator(".thumb canvas").first
    expect(first).to_be_visible()
    assert colours(first) > 3
    assert len(moved) > 4  # the page, its script and its styles, and answers
    assert 100_000 < sum(moved) < MOST_BYTES
    print(f"{run}: {sum(moved):,.0f} bytes")
