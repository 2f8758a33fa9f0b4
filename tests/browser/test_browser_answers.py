"""What stands on the page against the answers in Python: equal, to the digits that are shown."""

from __future__ import annotations

import random
import re

import numpy as np
from playwright.sync_api import Page, expect

import wherefrom
from see import detail, go_to, panel
from shown import digits
from stage import THOUSANDS, THOUSANDS_TOKENS, Served
from wherefrom.recording import Call

EDGES = 24


def edges() -> list[tuple[int, int, int, int]]:
    """Layers, heads, destinations and sources that they may read."""
    draw = random.Random(20_000)
    found = []
    for _ in range(EDGES):
        destination = draw.randrange(20, THOUSANDS_TOKENS)
        found.append((draw.randrange(3), draw.randrange(6), destination, draw.randrange(destination + 1)))
    return found


class Edge:
    """One edge, by the equations: score, weight, and what it moves."""

    def __init__(self, call: Call, head: int, destination: int, source: int) -> None:
        key_head = call.key_heads[head]
        q, k, v = call.q[head, destination], call.k[key_head, source], call.v[key_head, source]
        self.product = float(q.astype(np.float64) @ k.astype(np.float64))
        self.score = call.scale * self.product
        self.weight = float(np.exp(self.score - float(call.lse[head, destination])))
        assert call.output is not None
        self.moved = self.weight * float(np.linalg.norm(call.output[head].astype(np.float64) @ v.astype(np.float64)))


def test_random_edges_in_the_text_the_map_and_the_numbers(page: Page, server: Served, shelf) -> None:
    recording = wherefrom.open_recording(shelf / f"{THOUSANDS}.wherefrom")
    page.goto(server.link(run=THOUSANDS))
    for number, (layer, head, destination, source) in enumerate(edges()):
        call = recording.calls[layer]
        edge = Edge(call, head, destination, source)
        exact = wherefrom.weights(
            recording,
            layer=layer,
            head=head,
            destinations=range(destination, destination + 1),
            sources=range(source, source + 1),
        )
        assert np.isclose(exact.values[0, 0], edge.weight, rtol=1e-9, atol=0)

        # in the map's words, which say of a chosen edge what they say of one under the pointer
        chosen = {"run": THOUSANDS, "call": layer, "head": head, "to": destination, "from": source}
        page.goto(server.link(**chosen))
        expect(panel(page, "Map").locator(".said")).to_contain_text(
            re.compile(
                rf"row\s+{destination}\s.*column\s+{source}\s.*: {digits(edge.weight, 6)}, "
                rf"moved {digits(edge.moved, 4)}, score {digits(edge.score, 4)}\s*$"
            )
        )

        # in the text, under the pointer: of this head, or the mean over the layer's
        lens = "moved" if number % 2 else "weight"
        every = number % 4 == 0
        page.goto(server.link(**chosen, lens=lens, each=16, side="numbers"))
        if every:
            page.get_by_role("button", name=f"blocks.{layer}.attention: all its heads together").click()
            value = np.mean([Edge(call, one, destination, source).weight for one in range(call.heads)])
        else:
            value = edge.moved if lens == "moved" else edge.weight
        go_to(page, source, THOUSANDS_TOKENS).hover()
        expect(detail(page)).to_contain_text(
            re.compile(
                rf"^\s*{destination}\s.* reads from\s+{source}\s.* {digits(float(np.float32(value)), 3)}\s+{lens}\s*$"
            )
        )
        if every:
            continue

        # in the numbers
        row = [Edge(call, head, destination, at) for at in range(destination + 1)]
        strongest = sorted(range(destination + 1), key=lambda at: -row[at].weight)[:16]
        body = panel(page, "Numbers").locator("tbody:not(.end)")
        expect(body.locator("th .number")).to_have_text([str(at) for at in strongest])
        shown = [place.locator("td.number, .share .number").all_inner_texts() for place in body.all()[:16]]
        for at, seen in zip(strongest, shown, strict=True):
            single = [float(np.float32(value)) for value in (row[at].product, row[at].score, row[at].weight)]
            assert seen == [digits(value, 4) for value in single], (destination, at)
        rest = sum(edge.weight for edge in row) - sum(row[at].weight for at in strongest)
        if destination >= 16:
            assert body.last.locator(".share .number").inner_text() == digits(rest, 4)


def test_the_heads_figures_are_those_of_python(page: Page, server: Served, shelf) -> None:
    rows = list(wherefrom.heads(wherefrom.open_recording(shelf / f"{THOUSANDS}.wherefrom")))
    page.goto(server.link(run=THOUSANDS))
    heads = panel(page, "Heads")
    expect(heads.locator(".thumb")).to_have_count(18)
    for figure in ("entropy", "largest", "first", "distance", "induction"):
        heads.get_by_role("combobox").select_option(figure)
        expect(heads.locator(".place")).to_have_count(18)
        for place in heads.locator(".place").all():
            layer, head = map(int, place.locator(".number").inner_text().split("."))
            own = next(row for row in rows if (row["layer"], row["head"]) == (layer, head))
            assert place.locator(".quiet").inner_text() == digits(float(np.float32(own[figure])), 2)
