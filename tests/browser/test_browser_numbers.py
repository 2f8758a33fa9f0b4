"""One destination worked through: what stands there, how pointer and keyboard read it, and what has no numbers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from see import in_address, option, panel
from stage import TALK, Served
from watching import REFUSED, Watch


@pytest.fixture
def numbers(page: Page, server: Served) -> Locator:
    page.goto(server.link(run=TALK, call=1, head=2, to=700))
    option(page, "What is shown beside the text", "Numbers").click()
    in_address(page, "side=numbers")
    return panel(page, "Numbers")


def test_so_many_sources_stand_one_by_one(page: Page, numbers: Locator) -> None:
    for many in (8, 4, 16):
        if many != 8:
            option(numbers, "Sources shown one by one", str(many)).click()
            in_address(page, f"each={many}")
        expect(numbers.locator("tbody:not(.end) th")).to_have_count(many + 1)
        expect(numbers).to_contain_text(f"{701 - many} others, together")
        expect(numbers.get_by_role("rowheader", name="sum")).to_be_visible()
    expect(numbers.locator("tbody.end .share .number").last).to_have_text("1.000")
    expect(numbers).to_contain_text("rebuilt the kernel's output to within")
    option(numbers, "What is shown beside the text", "Map").click()
    expect(panel(page, "Map").get_by_role("application")).to_be_visible()


def test_each_number_of_a_strip_is_read_by_pointer_and_keys(page: Page, numbers: Locator) -> None:
    said = numbers.locator(".said")
    expect(said).to_contain_text("Point at a strip")
    query = numbers.get_by_role("slider", name="q of 700, 10 numbers")
    query.focus()
    expect(said).to_contain_text(re.compile(r"q of 700 .*dimension 0:"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("dimension 2:")
    page.keyboard.press("End")
    expect(said).to_contain_text("dimension 9:")
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text(re.compile(r"^\s*k of"))
    page.keyboard.press("Home")
    expect(said).to_contain_text("dimension 0:")
    numbers.get_by_role("slider", name=re.compile("^y of 700")).hover()
    expect(said).to_contain_text(re.compile(r"y of 700 .*dimension \d:"))
    in_address(page, "to=700")  # arrows within a strip are its own


def test_other_rows_and_heads_are_worked_through_as_they_are_chosen(page: Page, numbers: Locator) -> None:
    expect(numbers.get_by_role("slider", name=re.compile("^q of 700"))).to_be_visible()
    page.get_by_role("listbox", name="Text").press("ArrowLeft")
    expect(numbers.get_by_role("slider", name=re.compile("^q of 699"))).to_be_visible()
    page.keyboard.press("}")
    expect(numbers).to_contain_text("layer 1, head 3")
    expect(numbers.locator(".stale")).to_have_count(0)
    page.keyboard.press("n")
    expect(panel(page, "Evidence")).to_be_visible()
    page.keyboard.press("n")
    expect(panel(page, "Map")).to_be_visible()


@pytest.mark.parametrize(
    ("run", "to", "words"),
    [
        ("empty rows", 1, "Position 1 may read nothing here: the mask forbids every source."),
        ("some rows", 1, "Position 1 was not recorded as a destination: this call keeps 3 of 7 rows."),
    ],
)
def test_what_has_no_numbers_says_why(page: Page, server: Served, watch: Watch, run: str, to: int, words: str) -> None:
    watch.foresee(REFUSED)
    page.goto(server.link(run=run, call=0, head=1, to=to, side="numbers"))
    expect(panel(page, "Numbers").get_by_text(words)).to_be_visible()


def test_a_sink_a_cap_and_a_bias_are_in_the_sum(page: Page, server: Served) -> None:
    page.goto(server.link(run="everything", call=1, head=5, to=6, side="numbers"))
    own = panel(page, "Numbers")
    expect(own).to_contain_text("no key, moves nothing")
    expect(own).to_contain_text("score = 20.0 tanh(q\u00b7k \u00d7 0.3750 / 20.0) + bias")
    expect(own.locator("tbody.end .share .number").last).to_have_text("1.000")
