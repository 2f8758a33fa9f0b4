"""The list of recordings, the page's head, its colours, its help and its keys."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from conftest import Open
from see import chosen, in_address, in_list, option, panel, text, token
from stage import OTHER, TALK, TALK_TOKENS, THOUSANDS, Served, served

KEYS = ["broken", "empty rows", "everything", "long", OTHER, "some rows", TALK, THOUSANDS]


def test_every_recording_is_listed_and_opens(page: Page, server: Served) -> None:
    page.goto(server.address)
    expect(page.get_by_role("heading", name="Recordings")).to_be_visible()
    rows = page.get_by_role("listitem")
    expect(rows).to_have_count(len(KEYS) + 1)
    assert [row.locator("b").inner_text() for row in rows.all()][1:] == KEYS
    in_list(page, TALK).click()
    chosen(page, TALK_TOKENS - 1)
    expect(page).to_have_title(f"{TALK} \u00b7 wherefrom")
    expect(page.get_by_role("banner")).to_contain_text(f"{TALK_TOKENS} tokens")
    expect(page.get_by_role("banner")).to_contain_text("18 heads")
    expect(page.get_by_role("banner")).to_contain_text("checked: 3 of 3 calls")
    page.go_back()
    expect(page.get_by_role("heading", name="Recordings")).to_be_visible()
    page.go_forward()
    chosen(page, TALK_TOKENS - 1)
    page.get_by_role("button", name="wherefrom").click()
    expect(page.get_by_role("heading", name="Recordings")).to_be_visible()


def test_a_single_recording_opens_in_place_of_the_list_which_can_be_asked_for(browser: Browser, shelf: Path) -> None:
    with served(shelf / f"{TALK}.wherefrom") as alone:
        page = browser.new_page()
        page.goto("about:blank")
        page.goto(alone.address)
        chosen(page, TALK_TOKENS - 1)
        expect(page.get_by_role("button", name=re.compile("compare with"))).to_have_count(0)
        page.get_by_role("button", name="wherefrom").click()
        expect(page.get_by_role("heading", name="Recordings")).to_be_visible()
        in_list(page, TALK).click()
        chosen(page, TALK_TOKENS - 1)
        for _ in range(3):
            page.go_back()
        expect(page).to_have_url("about:blank")
        page.close()


def test_with_nothing_named_there_is_the_lesson_and_how_one_goes_on(browser: Browser) -> None:
    with served() as alone:
        page = browser.new_page()
        page.goto(alone.address)
        expect(page.get_by_text("No recording was named. Make one with: wherefrom record")).to_be_visible()
        page.get_by_role("main").get_by_role("link", name="lesson").click()
        expect(page.get_by_role("heading", name="One token reads others")).to_be_visible()
        page.close()


def test_a_recording_is_opened_from_the_keyboard(page: Page, server: Served) -> None:
    page.goto(server.address)
    own = in_list(page, TALK)
    expect(own).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        if own.evaluate("one => one === document.activeElement"):
            break
    page.keyboard.press("Enter")
    chosen(page, TALK_TOKENS - 1)


def test_the_list_leads_to_the_lesson_and_the_lesson_back(page: Page, server: Served) -> None:
    page.goto(server.address)
    page.get_by_role("main").get_by_role("link", name="lesson").click()
    expect(page.get_by_role("heading", name="One token reads others")).to_be_visible()
    page.get_by_role("banner").get_by_role("button", name="back").click()
    expect(page.get_by_role("heading", name="Recordings")).to_be_visible()


def test_colours_follow_the_system_and_the_switch(opened: Open, server: Served) -> None:
    page = opened(server.link(run=TALK), color_scheme="dark")
    chosen(page, TALK_TOKENS - 1)

    def lightness() -> int:
        found = page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
        return sum(map(int, re.findall(r"\d+", found)[:3]))

    assert lightness() < 200
    option(page, "Colours of the page", "light").click()
    assert lightness() > 600
    page.reload()
    chosen(page, TALK_TOKENS - 1)
    assert lightness() > 600
    assert "light" not in page.url
    page.goto(server.address)  # the list, by an address that says nothing
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    option(page, "Colours of the page", "dark").click()
    assert lightness() < 200
    page.emulate_media(color_scheme="light")
    assert lightness() < 200
    option(page, "Colours of the page", "auto").click()
    assert lightness() > 600


def test_help_opens_by_key_and_button_and_closes(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    help_ = page.get_by_role("dialog", name="Keyboard and words")
    page.keyboard.press("?")
    expect(help_).to_be_visible()
    expect(help_).to_contain_text("destination")
    page.keyboard.press("ArrowLeft")  # keys of the page are not for a page behind a dialog
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    chosen(page, TALK_TOKENS - 1)
    page.get_by_role("button", name="Keyboard and words").click()
    expect(help_).to_be_visible()
    help_.get_by_role("button", name="close").click()
    expect(help_).to_be_hidden()


EACH_KEY = {
    "ArrowLeft": [f"to={TALK_TOKENS - 2}"],
    "Shift+ArrowLeft": [f"from={TALK_TOKENS - 2}"],
    "]": ["call=2"],
    "[": ["call=0"],
    "}": ["head=0"],
    "{": ["head=5"],
    "2": ["lens=moved"],
    "r": ["show=readers"],
    "g": ["by=word"],
    "g g": ["by=sentence"],
    "l": ["scale=log"],
    "3": ["lens=attribution"],
    "4": ["lens=knockout"],
    "n": ["side=numbers"],
    "n n": ["side=evidence"],
    "m": ["side=evidence"],
}


def test_a_key_does_what_the_help_says(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    for keys, words in EACH_KEY.items():
        for key in keys.split():
            page.keyboard.press(key)
        in_address(page, *words)
        page.goto(server.link(run=TALK))
        chosen(page, TALK_TOKENS - 1)


def test_keys_undo_themselves_and_leave_fields_alone(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK))
    chosen(page, TALK_TOKENS - 1)
    for key in ("2", "1", "l", "l", "n", "n", "n", "r", "r", "]", "["):
        page.keyboard.press(key)
    page.keyboard.press("/")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    page.keyboard.type("n2r?[g")
    expect(field).to_have_value("n2r?[g")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(panel(page, "Map")).to_be_visible()
    expect(page.get_by_role("img", name="Scale: weight, linear")).to_be_visible()
    text(page).focus()
    page.keyboard.press("Control+ArrowLeft")
    expect(token(page, TALK_TOKENS - 1)).to_have_class(re.compile("chosen"))
