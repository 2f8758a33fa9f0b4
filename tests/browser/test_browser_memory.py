"""Memory while somebody wanders about: what the page and the server hold stays bounded."""

from __future__ import annotations

from itertools import islice

from playwright.sync_api import Page

from stage import Served
from wander import series

MIB = 2**20
HEAP, NODES, SERVER = 24 * MIB, 8000, 160 * MIB
"""By how much more the end may hold than the middle: below what the page (48 MiB of answers, of which its heap has only
those without arrays) and the server (64 MiB of answers, the maps of 16 heads) keep on purpose, and far below what a
leak of each answer would add. The nodes of the view before, some 5,000, are sometimes held until there is another."""


def test_what_is_held_stays_bounded(page: Page, server: Served) -> None:
    held = list(islice(series(page, server, every=50), 3))
    _, warm, end = held
    said = "\n".join(map(str, held))
    assert end.steps == 150, said
    assert end.heap - warm.heap < HEAP, said
    assert end.nodes - warm.nodes < NODES, said
    assert end.server - warm.server < SERVER, said
    print(said)
