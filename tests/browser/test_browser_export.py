"""A page in a file: it is opened without a network, shows what the server shows, and asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from typer.testing import CliRunner

from conftest import WIDE
from see import colours, detail, panel, text, token
from stage import HOSTILE, Served
from wherefrom.cli.app import app

PARTS = {"head": ("--head", "1.2"), "positions": ("--head", "1.2", "--positions", "3:6"), "layer": ("--layers", "0")}


@pytest.fixture(scope="module")
def written(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by what they carry."""
    folder = tmp_path_factory.mktemp("page")
    pages = {name: folder / f"{name}.html" for name in PARTS}
    for name, options in PARTS.items():
        done = CliRunner().invoke(app, ["export", str(shelf / f"{HOSTILE}.wherefrom"), str(pages[name]), *options])
        assert done.exit_code == 0, done.output
    return pages


@pytest.fixture
def alone(browser: Browser, written: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Page]:
    """The file, in a browser that is offline; whatever is asked for but the file itself fails the test."""
    file = written[getattr(request, "param", "head")]
    context = browser.new_context(viewport=WIDE, offline=True, reduced_motion="reduce")
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    yield page
    assert [url for url in asked if url != file.as_uri() and not url.startswith(("data:", "blob:"))] == []
    assert said == []
    assert page.evaluate("window.hit") is None
    context.close()


def show(alone: Page, words: str) -> None:
    """Change the address as a link would: the recording is the one that the file holds."""
    alone.wait_for_function("location.hash.includes('run=')")
    alone.evaluate("words => { location.hash = `${location.hash.split('&')[0]}&${words}` }", words)


def test_it_shows_what_the_server_shows(alone: Page, page: Page, server: Served) -> None:
    page.goto(server.link(run=HOSTILE, call=1, head=2, to=9, **{"from": 4}))
    show(alone, "call=1&head=2&to=9&from=4")
    for own in (page, alone):
        expect(token(own, 9)).to_be_visible()
        expect(detail(own)).to_contain_text("weight")
    expect(text(alone)).to_have_text(text(page).inner_text().strip(), use_inner_text=True)
    expect(detail(alone)).to_have_text(detail(page).inner_text(), use_inner_text=True)
    tile = panel(alone, "Map").locator(".leaflet-tile").first
    expect(tile).to_be_visible()
    assert colours(tile) > 1
    for own in (page, alone):
        own.keyboard.press("n")
    for own in (page, alone):
        expect(panel(own, "Numbers").get_by_role("rowheader", name="sum")).to_be_visible()
    shown = [panel(own, "Numbers").locator("tbody .number").all_text_contents() for own in (page, alone)]
    assert shown[0] == shown[1]
    assert shown[0]


def test_what_it_does_not_carry_it_says(alone: Page) -> None:
    expect(alone.get_by_text("that asks nobody")).to_be_visible()
    show(alone, "call=0&head=1&to=9")
    refusal = alone.get_by_text("--head 0.1")
    expect(refusal).to_have_count(1)
    expect(refusal).to_contain_text("Ask whoever made this file")
    expect(panel(alone, "Heads")).to_contain_text("Outlined: carried")
    expect(panel(alone, "Heads").locator(".thumb.carried")).to_have_count(1)
    panel(alone, "Map").get_by_role("button", name="head 2 of layer 1").click()
    expect(panel(alone, "Map").locator(".leaflet-tile").first).to_be_visible()
    show(alone, "call=1&head=2&to=9&side=evidence")
    expect(panel(alone, "Evidence")).to_contain_text("A file cannot run a model")


@pytest.mark.parametrize(
    ("alone", "map_says"),
    [("positions", "Strip on the left"), ("layer", "All heads of layer 0 are chosen")],
    indirect=["alone"],
)
def test_it_opens_at_something_that_it_carries(alone: Page, map_says: str) -> None:
    expect(panel(alone, "Text")).to_contain_text("share of the destination's row")
    expect(panel(alone, "Map")).to_contain_text(map_says)
    expect(alone.get_by_text("does not carry")).to_have_count(0)


def test_hostile_tokens_are_inert_and_readable(alone: Page) -> None:
    expect(text(alone)).to_contain_text("<img src=x onerror=window.hit=1>")
    expect(text(alone)).to_contain_text("中文")
    assert alone.locator("img").count() == 0


def test_it_answers_no_other_question_than_that_of_the_address(alone: Page) -> None:
    show(alone, "call=1&head=2&every=yes&to=9")
    said = panel(alone, "Text").get_by_text("does not carry head 2 of all layers together")
    expect(said).to_be_visible()
    show(alone, "call=1&every=yes&to=9")
    expect(said).to_have_count(0)
    expect(panel(alone, "Text")).to_contain_text("mean over")
