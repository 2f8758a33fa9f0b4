"""The lesson: every step, what can be changed in it, and its questions."""

from __future__ import annotations

import math
import re

import pytest
from playwright.sync_api import Locator, Page, expect

from see import in_address, panel, segment
from stage import TALK, Served

STEPS = {
    1: "One token reads others",
    2: "The mask",
    3: "The scale",
    4: "Several heads",
    5: "A block",
    6: "What a weight does not say",
}


def step(page: Page, server: Served, number: int) -> Page:
    page.goto(server.link(page="lesson", step=number))
    expect(page.get_by_role("heading", level=1, name=STEPS[number])).to_be_visible()
    return page


def question(page: Page) -> Locator:
    return page.get_by_role("form", name="Check yourself")


def answered(page: Page) -> None:
    """The question says what is wrong, shows the answer, and takes it."""
    ask = question(page)
    press = ask.get_by_role("button", name="Check")
    expect(press).to_be_disabled()
    options = ask.get_by_role("radio")
    if options.count():
        seen = []
        for one in options.all():
            one.check()
            press.click()
            seen.append(ask.get_by_role("status").inner_text().split(".")[0])
        assert set(seen) == {"Right", "Not quite"}
        return
    field = ask.get_by_role("textbox")
    field.fill("123456")
    press.click()
    expect(ask.get_by_text("Not quite.")).to_be_visible()
    ask.get_by_text("Show the answer").click()
    field.fill(ask.locator("details .number").inner_text())
    press.click()
    expect(ask.get_by_text("Right.")).to_be_visible()


def test_the_steps_follow_one_another_and_the_address_holds_them(page: Page, server: Served) -> None:
    page.goto(server.link(page="lesson"))
    for number, name in STEPS.items():
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        if number > 1:
            in_address(page, f"step={number}")
        if number < 6:
            page.get_by_role("button", name=re.compile("^Next")).click()
    expect(page.get_by_role("button", name=re.compile("^Next"))).to_have_count(0)
    page.get_by_role("contentinfo").or_(page.locator("footer")).get_by_role("button", name="Back").last.click()
    expect(page.get_by_role("heading", level=1, name=STEPS[5])).to_be_visible()
    page.get_by_role("button", name="Step 2: The mask").click()
    in_address(page, "step=2")


@pytest.mark.parametrize("number", STEPS)
def test_each_step_asks_a_question_that_knows_its_answer(page: Page, server: Served, number: int) -> None:
    answered(step(page, server, number))


def test_changed_numbers_change_what_follows(page: Page, server: Served) -> None:
    """Three tokens by hand: q of "was" is (2, 1); keys (1, 0), (0, 1), (1, 1); values (2, 0), (0, 2), (1, 1)."""
    step(page, server, 1)

    def y(q: tuple[float, float], scale: float, read: tuple[int, ...] = (0, 1, 2)) -> str:
        k, v = ((1, 0), (0, 1), (1, 1)), ((2, 0), (0, 2), (1, 1))
        raised = {j: math.exp(scale * (q[0] * k[j][0] + q[1] * k[j][1])) for j in read}
        total = sum(raised.values())
        mixed = [sum(raised[j] / total * v[j][d] for j in read) for d in range(2)]
        return f"({mixed[0]:.3f}, {mixed[1]:.3f})"

    out = page.get_by_role("region", name="What comes out").locator(".strong")
    usual = 1 / math.sqrt(2)
    expect(out).to_have_text(y((2, 1), usual))
    field = page.get_by_role("spinbutton", name="q of \u201cwas\u201d, number 1")
    field.fill("-1.5")
    expect(out).to_have_text(y((-1.5, 1), usual))
    field.fill("1e9")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("\u22121000 to 1000")).to_be_visible()
    expect(out).to_have_text(y((-1.5, 1), usual))
    field.blur()
    expect(page.get_by_text("\u22121000 to 1000")).to_have_count(0)
    expect(field).to_have_value("-1.5")
    page.get_by_role("spinbutton", name="scale, as a number").fill("1.25")
    expect(out).to_have_text(y((-1.5, 1), 1.25))
    page.get_by_role("checkbox", name="\u201cwas\u201d may read \u201cThe\u201d").uncheck()
    expect(out).to_have_text(y((-1.5, 1), 1.25, (1, 2)))
    page.get_by_role("button", name="1/\u221a2").click()
    expect(out).to_have_text(y((-1.5, 1), usual, (1, 2)))
    for name in ("bridge", "was"):
        page.get_by_role("checkbox", name=f"\u201cwas\u201d may read \u201c{name}\u201d").uncheck()
    expect(page.get_by_text("may read nothing, so it has no row of weights")).to_be_visible()
    page.get_by_role("button", name="Back to the example").click()
    expect(out).to_have_text(y((2, 1), usual))
    segment(page, "the token that reads", "The").click()
    expect(out).to_have_text("(2.000, 0.000)")


def test_masks(page: Page, server: Served) -> None:
    step(page, server, 2)
    pairs = page.get_by_role("region", name="The mask")
    for rule, count in (("causal", 21), ("bidirectional", 36), ("only earlier", 15), ("window", 15)):
        segment(page, "mask", rule).click()
        expect(pairs).to_contain_text(f"{count} of 36 pairs are permitted")
        expect(page.get_by_role("heading", name="An empty row")).to_have_count(int(rule == "only earlier"))
    page.get_by_role("slider").fill("2")
    expect(pairs).to_contain_text("11 of 36 pairs are permitted")
    cell = page.locator("[data-cell='5-4']")
    cell.click()
    expect(pairs).to_contain_text("10 of 36 pairs are permitted")
    expect(cell).to_have_attribute("aria-pressed", "false")
    expect(page.get_by_role("radio", name="your own")).to_be_checked()
    cell.press("ArrowRight")
    expect(page.locator("[data-cell='5-5']")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="An empty row")).to_be_visible()


def test_an_answer_can_be_tried_out_in_the_cells(page: Page, server: Served) -> None:
    step(page, server, 2)
    ask = question(page).locator("p").first
    asked = ask.inner_text()
    assert asked.startswith("Forbid “it” to read “was”. What does its weight on “The” become?")
    page.locator("[data-cell='5-2']").click()
    expect(ask).to_have_text(asked)
    question(page).get_by_role("textbox").fill(page.locator("[data-cell='5-0']").inner_text())
    question(page).get_by_role("button", name="Check").click()
    expect(question(page)).to_contain_text("Right")
    page.get_by_role("button", name="ask about this one").click()
    expect(ask).not_to_have_text(asked)


def test_scales(page: Page, server: Served) -> None:
    step(page, server, 3)
    rows = page.get_by_role("region", name="A row drawn at random")
    expect(rows).to_contain_text("scale 1/\u221a64 = 0.125")
    rows.get_by_role("slider").first.fill("4")
    expect(rows).to_contain_text("scale 1/\u221a16 = 0.250")
    rows.get_by_role("button", name="1", exact=True).click()
    expect(rows).to_contain_text("your scale, 1.000")
    rows.get_by_role("slider").last.fill("-3")
    expect(rows).to_contain_text("your scale, 0.125")
    before = rows.get_by_role("figure").first.inner_text()
    rows.get_by_role("button", name="Draw another row").click()
    expect(rows.get_by_role("figure").first).not_to_have_text(before)


def test_heads_beside_one_another(page: Page, server: Served) -> None:
    step(page, server, 4)
    heads = page.get_by_role("img", name=re.compile("All weights of head"))
    expect(heads).to_have_count(3)
    page.get_by_role("spinbutton", name="number of heads").fill("5")
    expect(heads).to_have_count(5)
    expect(page.get_by_text("mean of the 5")).to_be_visible()
    before = page.get_by_role("figure").first.inner_text()
    page.get_by_role("button", name="Draw other matrices").click()
    assert page.get_by_role("figure").first.inner_text() != before
    segment(page, "the token that reads", "The").click()
    expect(page.get_by_text("Joined").first).to_be_visible()
    expect(page.get_by_role("figure").first).to_contain_text("1.00")


def test_a_block_says_what_each_part_does(page: Page, server: Served) -> None:
    step(page, server, 5)
    about = page.get_by_role("region", name="The part that is pointed at")
    expect(about).to_contain_text("The only part through which one position can learn anything of another.")
    diagram = page.get_by_role("region", name="The block, in the order of computation")
    names = diagram.get_by_role("button").all_inner_texts()
    for name in dict.fromkeys(names):
        diagram.get_by_role("button", name=name, exact=True).first.click()
        expect(about.get_by_role("heading")).to_have_text(name)
    segment(page, "normalisation", "after each sum (the original)").click()
    expect(page.get_by_role("note")).to_contain_text("u = Norm(x + Attention(x))")
    segment(page, "the token that is changed", "was").click()
    diagram.get_by_role("button", name=re.compile("ttention")).first.click()
    expect(about).to_contain_text("Changed here: \u201cwas\u201d.")


def test_weights_and_knock_outs_disagree(page: Page, server: Served) -> None:
    step(page, server, 6)
    table = page.get_by_role("region", name="Weight and knock-out").get_by_role("table")
    expect(table).to_contain_text("not shown yet")
    page.get_by_role("button", name="Show what was measured").click()
    expect(table).not_to_contain_text("not shown yet")
    costs = [float(cell.replace("\u2212", "-")) for cell in table.locator("td:last-child .number").all_inner_texts()]
    assert costs == sorted(costs, reverse=True)
    segment(page, "order by", "weight").click()
    weights = list(map(float, table.locator("td:nth-child(2) .number").all_inner_texts()))
    assert weights == sorted(weights, reverse=True)
    segment(page, "order by", "position").click()
    page.get_by_role("button", name="Hide what was measured").click()
    expect(table).to_contain_text("not shown yet")


def test_a_real_head_is_carried_into_it(page: Page, server: Served) -> None:
    page.goto(server.link(run=TALK, call=1, head=2, to=700, side="numbers", each=4))
    numbers = panel(page, "Numbers")
    weights = numbers.locator("tbody:not(.end) .share .number").all_inner_texts
    expect(numbers.get_by_role("button", name="carry into the lesson")).to_be_enabled()
    before = [f"{float(weight):.3f}" for weight in weights()]
    assert len(before) == 5
    numbers.get_by_role("button", name="carry into the lesson").click()
    expect(page.get_by_text("The first step holds rows that were carried here.")).to_be_visible()
    expect(page.get_by_text("layer 1, head 2").first).to_be_visible()
    out = page.get_by_role("region", name="What comes out")
    after = out.locator("tbody .share .number").all_inner_texts()
    assert after == before  # computed anew there, from q and k alone
    answered(page)
    page.get_by_role("button", name=re.compile("^Edit q of")).click()
    field = page.get_by_role("spinbutton", name=re.compile("q of .*, number 1$"))
    field.fill("5")
    assert out.locator("tbody .share .number").all_inner_texts() != before
    page.get_by_role("button", name="show the worked example instead").click()
    expect(out.locator(".strong")).to_be_visible()
    expect(page.get_by_text("This is the worked example.")).to_be_visible()
    page.get_by_role("button", name="to its numbers").click()
    expect(numbers).to_be_visible()
    page.go_back()
    expect(out.locator(".strong")).to_be_visible()
