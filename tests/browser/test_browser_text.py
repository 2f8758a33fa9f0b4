"""The text: what is chosen, what glows, and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import wherefrom
from see import chosen, detail, go_to, in_address, option, panel, text, token
from shown import digits
from stage import LONG, LONG_TOKENS, TALK, TALK_TOKENS, Served, prose
from wherefrom.questions import row_of_weights

LAST = TALK_TOKENS - 1


@pytest.fixture
def talk(page: Page, server: Served) -> Page:
    page.goto(server.link(run=TALK))
    chosen(page, LAST)
    return page


def glowing(page: Page) -> list[int]:
    """Positions in sight that have a colour, once there are any."""
    lit = text(page).locator(".token[style*='--glow']")
    expect(lit.first).to_be_visible()
    return sorted(set(lit.evaluate_all("all => all.map(one => Number(one.dataset.at))")))


def test_the_last_token_is_chosen_and_its_sources_glow(talk: Page) -> None:
    expect(token(talk, LAST)).to_be_in_viewport()
    expect(token(talk, LAST)).to_have_attribute("aria-selected", "true")
    assert len(glowing(talk)) > 20
    expect(talk.get_by_role("img", name="Scale: weight, linear, from 0 to")).to_be_visible()
    expect(panel(talk, "Text").get_by_text("expected after")).to_be_visible()


def test_the_running_text_is_the_text(talk: Page) -> None:
    text(talk).press("Home")
    chosen(talk, 0)
    shown = "".join(text(talk).locator(".line .sign, .line .blank").all_text_contents())
    assert len(shown) > 300
    assert shown == prose(TALK_TOKENS).replace("\n", "")[: len(shown)]


def test_a_destination_is_chosen_by_mouse_and_a_source_with_shift(talk: Page) -> None:
    token(talk, LAST - 30).click()
    chosen(talk, LAST - 30)
    in_address(talk, f"to={LAST - 30}")
    token(talk, LAST - 35).click(modifiers=["Shift"])
    expect(token(talk, LAST - 35)).to_have_class(re.compile(r"\bother\b"))
    in_address(talk, f"from={LAST - 35}", f"to={LAST - 30}")


def test_what_comes_later_may_not_be_read(talk: Page) -> None:
    token(talk, LAST - 30).click()
    expect(token(talk, LAST - 29)).to_have_class(re.compile(r"\bclosed\b"))
    expect(token(talk, LAST - 31)).not_to_have_class(re.compile(r"\bclosed\b"))
    assert max(glowing(talk)) <= LAST - 30
    token(talk, LAST - 20).hover()
    expect(detail(talk)).to_contain_text(f"{LAST - 20}")
    expect(detail(talk)).to_contain_text("may not read")


def test_the_keyboard_chooses(talk: Page) -> None:
    text(talk).focus()
    talk.keyboard.press("ArrowLeft")
    chosen(talk, LAST - 1)
    talk.keyboard.press("ArrowRight")
    chosen(talk, LAST)
    talk.keyboard.press("Home")
    chosen(talk, 0)
    talk.keyboard.press("ArrowDown")
    below = text(talk).locator(".chosen").first
    expect(below).not_to_have_attribute("data-at", "0")
    expect(below).to_be_in_viewport()
    talk.keyboard.press("ArrowUp")
    chosen(talk, 0)
    talk.keyboard.press("PageDown")
    expect(text(talk).locator(".chosen").first).not_to_have_attribute("data-at", "0")
    talk.keyboard.press("End")
    chosen(talk, LAST)
    expect(text(talk)).to_have_attribute("aria-activedescendant", re.compile(rf"-{LAST}$"))
    talk.keyboard.press("Shift+ArrowLeft")
    expect(token(talk, LAST - 1)).to_have_class(re.compile(r"\bother\b"))
    talk.keyboard.press("Shift+ArrowLeft")
    in_address(talk, f"from={LAST - 2}")


def test_readers_of_a_source(talk: Page) -> None:
    token(talk, LAST - 60).click(modifiers=["Shift"])
    option(talk, "What glows", "readers").click()
    in_address(talk, "show=readers")
    chosen(talk, LAST - 60)
    expect(token(talk, LAST - 61)).to_have_class(re.compile(r"\bclosed\b"))
    assert min(glowing(talk)) >= LAST - 60
    token(talk, LAST - 40).hover()
    expect(detail(talk)).to_contain_text("reads from")
    token(talk, LAST - 50).click()
    in_address(talk, f"from={LAST - 50}")
    option(talk, "What glows", "sources").click()
    chosen(talk, LAST)


def test_readers_are_those_of_the_chosen_token_until_another_is_chosen(talk: Page, server: Served) -> None:
    token(talk, LAST - 30).click()
    talk.keyboard.press("r")
    in_address(talk, "show=readers", f"to={LAST - 30}")
    chosen(talk, LAST - 30)
    expect(token(talk, LAST - 31)).to_have_class(re.compile(r"\bclosed\b"))
    assert min(glowing(talk)) >= LAST - 30
    talk.keyboard.press("ArrowLeft")
    chosen(talk, LAST - 31)
    assert "from=" not in talk.url
    talk.goto(server.link(run=TALK, call=1, show="readers"))  # a link that names no source
    chosen(talk, LAST)
    expect(detail(talk)).to_contain_text("Point at a token")


def test_lenses_and_scales_say_what_they_are(talk: Page) -> None:
    group = panel(talk, "Text")
    option(group, "Lens", "moved").click()
    in_address(talk, "lens=moved")
    expect(group.get_by_role("img", name="Scale: moved, linear")).to_be_visible()
    expect(group.get_by_text("|a W_O v|").first).to_be_attached()
    option(group, "Scale", "log").click()
    in_address(talk, "scale=log")
    expect(group.get_by_role("img", name="Scale: moved, log scale")).to_be_visible()
    option(group, "Lens", "weight").click()
    expect(group.get_by_role("img", name="Scale: weight, log scale")).to_be_visible()


@pytest.mark.parametrize("unit", ["word", "sentence", "line"])
def test_tokens_of_a_unit_glow_as_one(talk: Page, unit: str) -> None:
    group = panel(talk, "Text")
    option(group, "Group by", unit).click()
    in_address(talk, f"by={unit}")
    expect(group.get_by_role("img", name=f"Scale: weight, sum of the {unit}")).to_be_visible()
    written = prose(TALK_TOKENS)
    at = written.rindex(" council ") + 1  # letters are tokens
    go_to(talk, at, TALK_TOKENS)
    paint = [token(talk, place).evaluate("one => one.style.getPropertyValue('--glow')") for place in range(at, at + 7)]
    assert len(set(paint)) == 1
    assert paint[0]
    token(talk, at + 2).hover()
    expect(detail(talk)).to_contain_text(
        re.compile(rf"reads from\s+the {unit}\s+[\d,]+\u2013[\d,]+\s+of\s+{at + 2}\s+u")
    )
    if unit == "word":
        expect(detail(talk)).to_contain_text(f"{at}\u2013{at + 7}")


def test_words_are_found(talk: Page) -> None:
    written = prose(TALK_TOKENS)
    count = written.count("council")
    field = talk.get_by_role("searchbox", name="Find in the text")
    said = talk.get_by_role("search").get_by_role("status")
    field.fill("Council")  # small and capital letters are the same
    expect(said).to_have_text(f"1 of {count}")
    first = written.index("council")
    expect(token(talk, first)).to_be_in_viewport()
    expect(token(talk, first)).to_have_class(re.compile(r"\bfound\b"))
    field.press("Enter")
    expect(said).to_have_text(f"2 of {count}")
    expect(token(talk, written.index("council", first + 1))).to_be_in_viewport()
    field.press("Shift+Enter")
    expect(said).to_have_text(f"1 of {count}")
    field.fill("nowhere")
    expect(said).to_have_text("not in the text")
    field.press("Escape")
    expect(field).to_have_value("")
    expect(said).to_have_count(0)
    in_address(talk, f"run={TALK}")


def test_what_was_predicted_and_what_came(talk: Page, shelf: Path) -> None:
    own = wherefrom.open_recording(shelf / f"{TALK}.wherefrom").predictions[LAST - 9]
    token(talk, LAST - 9).click()
    foot = panel(talk, "Text").locator(".next")
    for label in own.labels[:5]:
        expect(foot).to_contain_text(label.strip() or "\u00b7")
    expect(foot).to_contain_text("really came")
    assert own.position == LAST - 9


def test_the_first_token_can_be_left_out_and_that_is_said(page: Page, server: Served, shelf: Path) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    row = row_of_weights(recording.calls[0], 1)
    head = int(row[:, 0].argmax())
    share = float(row[head, 0])
    assert share > 0.3
    page.goto(server.link(run=TALK, call=0, head=head, to=1))
    chosen(page, 1)
    box = page.get_by_role("checkbox", name="without")
    expect(panel(page, "Text")).to_contain_text("which has")
    box.check()
    in_address(page, "first=without")
    expect(page.get_by_role("img", name="Scale: weight as share of the rest, linear, from 0 to 1.00")).to_be_visible()
    expect(token(page, 0)).not_to_have_attribute("style", re.compile("background"))
    box.uncheck()
    expect(page.get_by_role("img", name="Scale: weight, linear")).to_be_visible()


def test_a_long_text_is_on_the_page_only_where_it_is_seen(page: Page, server: Served) -> None:
    page.goto(server.link(run=LONG, head=0))
    chosen(page, LONG_TOKENS - 1)
    text(page).press("Home")
    chosen(page, 0)
    written = prose(LONG_TOKENS)
    for share in (0.1, 0.5, 0.93):
        position = int(share * LONG_TOKENS)
        found = go_to(page, position, LONG_TOKENS)
        expect(found).to_be_in_viewport()
        assert found.locator(".sign, .blank, .return").all_text_contents()[0].strip("\u23ce") in (written[position], "")
        assert page.locator(".line").count() < 60
    text(page).hover()
    before = page.locator(".line .at").first.text_content()
    page.mouse.wheel(0, 3000)
    expect(page.locator(".line .at").first).not_to_have_text(before or "")
    text(page).press("End")
    expect(token(page, LONG_TOKENS - 1)).to_be_in_viewport()
    assert page.locator(".line").count() < 60


@pytest.mark.parametrize("mode", ["sources", "readers"])
def test_the_strongest_are_named_wherever_they_are(page: Page, server: Served, shelf: Path, mode: str) -> None:
    recording = wherefrom.open_recording(shelf / f"{TALK}.wherefrom")
    call, head, at = recording.calls[1], 2, LAST if mode == "sources" else 3
    if mode == "sources":
        values = row_of_weights(call, at)[head].filled(0.0)
        page.goto(server.link(run=TALK, call=1, head=head, to=at))
    else:
        values = np.array([row_of_weights(call, row)[head].filled(0.0)[at] for row in range(TALK_TOKENS)])
        page.goto(server.link(run=TALK, call=1, head=head, show="readers", **{"from": at}))
    strongest = page.get_by_role("group", name=f"Strongest {mode}").get_by_role("button")
    expect(strongest).to_have_count(5)
    expected = [int(place) for place in np.argsort(-values, kind="stable")[:5]]
    assert [digits(float(values[place]), 2) for place in expected] == [
        re.sub(r".*\s", "", one.strip()) for one in strongest.all_inner_texts()
    ]
    strongest.nth(1).click()
    in_address(page, f"{'from' if mode == 'sources' else 'to'}={expected[1]}")
    expect(token(page, expected[1])).to_be_in_viewport()
    expect(detail(page)).to_contain_text(digits(float(values[expected[1]])))


def test_what_is_found_is_chosen_by_key_and_by_button(talk: Page) -> None:
    field = talk.get_by_role("searchbox", name="Find in the text")
    field.fill("council")
    expect(talk.get_by_role("search").get_by_role("status")).to_contain_text("1 of")
    place = text(talk).locator(".current").first
    expect(place).to_be_visible()
    places = text(talk).locator(".current").evaluate_all("all => all.map(one => Number(one.dataset.at))")
    field.press("Control+Enter")
    in_address(talk, f"to={max(places)}")
    field.press("Enter")
    expect(talk.get_by_role("search").get_by_role("status")).to_contain_text("2 of")
    talk.get_by_role("search").get_by_role("button", name="choose").click()
    expect(talk).not_to_have_url(re.compile(f"to={max(places)}(&|$)"))
