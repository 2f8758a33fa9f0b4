"""What sources were worth, measured while one looks: the table against Python, progress, cancel, and what cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Response, Route, expect

import wherefrom
from see import asked_elsewhere, in_address, option, panel, token
from shown import digits
from stage import LONG, MODEL, TALK, THOUSANDS, Served
from watching import REFUSED, Watch
from wherefrom.evidence.at import Evidence, evidence_at
from wherefrom.recording import open_recording

AT = 300
LONG_WORK = 120_000
"""Milliseconds that measuring may take on a machine that does other things."""


def evidence(page: Page) -> Locator:
    return panel(page, "Evidence")


def measured(page: Page) -> None:
    expect(evidence(page).locator(".words")).to_contain_text("Measured in", timeout=LONG_WORK)


def cells(page: Page, source: int) -> list[str]:
    """What stands in the row of a source: weight, moved, attribution, knock-out."""
    row = evidence(page).get_by_role("row").filter(has=page.get_by_title(f"Choose source {source}", exact=True))
    return row.locator("td .number").all_text_contents()


def shown(value: float) -> str:
    """A number as this narrow table writes it."""
    return digits(value, 2 if abs(value) < 0.01 else 3)


@pytest.fixture(scope="module")
def asked(shelf: Path) -> Any:
    """Python's own answer for a destination of the short recording."""
    model = wherefrom.load(shelf.parent / MODEL)
    recording = open_recording(shelf / f"{TALK}.wherefrom")

    def ask(**how: Any) -> Evidence:
        return evidence_at(model, recording, AT, **how)

    return ask


def close(text: str, value: float) -> bool:
    """Whether a text is a number to its digits; a knock-out that is run in other batches may differ by a rounding."""
    return text in {shown(value), shown(value + 3e-6), shown(value - 3e-6)}


def test_what_is_measured_is_what_python_measures(page: Page, server: Served, asked: Any) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, to=AT, side="evidence"))
    own = evidence(page)
    expect(own).to_contain_text("Not measured yet")
    expect(own).to_contain_text("Nothing is drawn before it is measured")
    expect(own.locator("tbody tr")).to_have_count(12)
    own.get_by_role("button", name="measure", exact=True).click()
    measured(page)
    expected = asked(scope=wherefrom.Scope((1,), (2,)))
    assert expected.prices is not None
    strongest = [int(source) for source in abs(expected.nats[: AT + 1]).argsort()[::-1][:8]]
    for source in strongest:
        weight, _, attribution, knockout = cells(page, source)
        row = wherefrom.weights(expected.recording, layer=1, head=2, destinations=range(AT, AT + 1)).values[0]
        assert weight == shown(float(row[source]))
        assert close(attribution, float(expected.prices[source]))
        assert close(knockout, float(expected.nats[source]))
    expect(own).to_contain_text("head 2 of layer 1")
    expect(own.get_by_role("heading", name="Weight against knock-out")).to_be_visible()
    own.get_by_role("button", name="source", exact=True).click()
    in_address(page, "sort=position")
    expect(own.locator("tbody .source .number").first).to_have_text("0")
    own.get_by_title(f"Choose source {strongest[0]}", exact=True).or_(
        own.get_by_title("Choose source 0", exact=True)
    ).first.click()
    in_address(page, "from=0")


def test_a_page_opened_again_shows_what_was_measured_and_the_text_glows_by_it(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=0, head=1, to=AT, side="evidence"))
    expect(evidence(page)).to_contain_text("Not measured yet")
    page.keyboard.press("m")
    measured(page)
    before = evidence(page).locator("tbody td .number").all_text_contents()
    page.reload()
    measured(page)
    expect(evidence(page).locator("tbody tr")).to_have_count(12)
    assert evidence(page).locator("tbody td .number").all_text_contents() == before
    for key, lens, unit in (("3", "attribution", "nats, estimate"), ("4", "knockout", "nats, knock-out")):
        page.keyboard.press(key)
        in_address(page, f"lens={lens}")
        expect(panel(page, "Text")).to_contain_text(unit)
    page.keyboard.press("r")
    expect(panel(page, "Text")).to_contain_text(re.compile("of one destination"))
    page.keyboard.press("r")
    token(page, AT).press("ArrowLeft")
    expect(panel(page, "Text").get_by_role("button", name="measure")).to_be_visible()


def test_work_is_told_and_can_be_cancelled_and_done_again(page: Page, server: Served) -> None:
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1999, side="evidence"))
    own = evidence(page)
    with server.standing_still():
        own.get_by_role("button", name="measure", exact=True).click()
        expect(own.get_by_role("progressbar")).to_be_visible()
        own.get_by_role("button", name="cancel", exact=True).click()
        expect(own.locator(".words")).to_contain_text("Cancelled: nothing of it was kept.")
    expect(own.locator("tbody td .dot")).to_have_count(0)
    own.get_by_role("button", name="measure again").click()
    measured(page)


def test_who_opens_a_page_while_it_is_measured_sees_the_work(page: Page, server: Served) -> None:
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1998, side="evidence"))
    own = evidence(page)
    expect(own.locator(".words")).to_contain_text("Not measured yet")
    with server.standing_still():
        page.keyboard.press("m")
        expect(own.get_by_role("button", name="cancel", exact=True)).to_be_visible()
        page.reload()
        expect(own.get_by_role("button", name="cancel", exact=True)).to_be_visible()
    measured(page)


def held_back(page: Page) -> list[Route]:
    """Keep back the server's answers to whether something was measured, until they are let go."""
    waiting: list[Route] = []
    page.route("**/api/measured?*", lambda route: waiting.append(route))
    return waiting


def let_go(page: Page, waiting: list[Route]) -> None:
    for route in waiting:
        route.continue_()
    page.unroute("**/api/measured?*")


def told_cancelled(answer: Response) -> bool:
    """Whether who follows a measurement hears that it was cancelled."""
    asked = answer.request.method == "GET" and "/api/job?" in answer.url
    return asked and answer.json()["state"] == "cancelled"


def begun(page: Page) -> list[str]:
    """Measurements that the page asks for from here on."""
    posts: list[str] = []
    page.on("request", lambda request: request.method == "POST" and posts.append(str(request.post_data)))
    return posts


def test_measure_pressed_too_early_follows_work_under_way_and_its_cancel_is_the_end(page: Page, server: Served) -> None:
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1997))
    with server.standing_still():
        for destination in (1960, 1997):
            asked_elsewhere(page, THOUSANDS, destination)
        posts, waiting = begun(page), held_back(page)
        page.keyboard.press("m")
        expect(evidence(page).locator(".words")).to_contain_text("Looking")
        page.keyboard.press("m")
        let_go(page, waiting)
        with page.expect_response(told_cancelled):
            evidence(page).get_by_role("button", name="cancel", exact=True).click()
        expect(evidence(page).locator(".words")).to_contain_text("Cancelled: nothing of it was kept.")
        assert posts == []
    evidence(page).get_by_role("button", name="measure again").click()
    measured(page)
    assert len(posts) == 1


def test_measure_pressed_too_early_is_of_that_destination_alone(page: Page, server: Served) -> None:
    waiting = held_back(page)
    page.goto(server.link(run=TALK, call=2, head=1, to=AT, side="evidence"))
    expect(evidence(page).locator(".words")).to_contain_text("Looking")
    posts = begun(page)
    page.keyboard.press("m")
    token(page, AT).press("ArrowLeft")
    in_address(page, f"to={AT - 1}")
    let_go(page, waiting)
    expect(evidence(page).locator(".words")).to_contain_text("Not measured yet")
    page.keyboard.press("ArrowRight")
    in_address(page, f"to={AT}")
    expect(evidence(page).locator(".words")).to_contain_text("Not measured yet")
    assert posts == []
    page.keyboard.press("m")
    measured(page)
    assert len(posts) == 1


def test_work_elsewhere_is_told_and_can_be_cancelled(page: Page, server: Served) -> None:
    page.goto(server.link(run=THOUSANDS, call=1, every="yes", to=1996, side="evidence"))
    own = evidence(page)
    expect(own.locator(".words")).to_contain_text("Not measured yet")
    with server.standing_still():
        asked_elsewhere(page, THOUSANDS, 1950)
        page.keyboard.press("ArrowLeft")
        expect(own.locator(".other")).to_contain_text(re.compile(r"Being measured now: position\s+1,950"))
        page.keyboard.press("m")
        expect(own.locator(".other")).to_contain_text(re.compile(r"Behind position\s+1,950"))
        own.get_by_role("button", name="cancel that").click()
        expect(own.locator(".other")).to_have_count(0)
        expect(own.get_by_role("progressbar")).to_be_visible()
    measured(page)


def test_another_target_and_one_that_is_no_token(page: Page, server: Served, watch: Watch, asked: Any) -> None:
    watch.foresee(REFUSED)
    page.goto(server.link(run=TALK, call=2, head=0, to=AT, side="evidence"))
    own = evidence(page)
    field = own.get_by_role("combobox", name=re.compile("^Target"))
    field.fill("z")
    own.get_by_role("button", name="ask").click()
    in_address(page, "for=z")
    own.get_by_role("button", name="measure", exact=True).click()
    measured(page)
    expected = asked(scope=wherefrom.Scope((2,), (0,)), target="z")
    expect(own.locator("form")).to_contain_text(digits(expected.knockouts.before))
    field.fill("no such token")
    field.press("Enter")
    own.get_by_role("button", name="measure", exact=True).click()
    expect(own.locator(".words")).to_contain_text("exactly one token of this model", timeout=LONG_WORK)


def test_what_reads_only_itself_has_nothing_to_measure(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=0, to=0, side="evidence"))
    expect(evidence(page).locator(".words")).to_contain_text(
        "It may read only itself: there is no source to leave out."
    )
    expect(evidence(page).get_by_role("button", name=re.compile("measure"))).to_have_count(0)
    expect(panel(page, "Text").get_by_role("checkbox", name=re.compile("^without"))).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(evidence(page).get_by_role("button", name="measure", exact=True)).to_be_visible()


def test_what_another_model_recorded_is_not_measured_and_says_why(page: Page, server: Served) -> None:
    page.goto(server.link(run=LONG, call=0, head=0, to=40, side="evidence"))
    expect(evidence(page).locator(".words")).to_contain_text("expected the model that made the recording")
    expect(evidence(page).get_by_role("button", name=re.compile("measure"))).to_have_count(0)
    expect(evidence(page).locator("tbody tr")).to_have_count(12)  # the weights are there all the same


def test_heads_that_carried_are_opened_from_the_list(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, every="yes", to=12, side="evidence"))
    expect(evidence(page)).to_contain_text("Not measured yet")
    page.keyboard.press("m")
    measured(page)
    section = (
        evidence(page).locator("section").filter(has=page.get_by_role("heading", name=re.compile("Heads that carried")))
    )
    expect(section).to_be_visible()
    option(page, "Lens", "knock-out").click()
    in_address(page, "lens=knockout")
