"""Somebody who looks at everything in no order, and what it costs: the page's memory and the server's, over time.

`PYTHONPATH=tests python tests/browser/wander.py MINUTES` prints the series; the tests take some of its steps.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import CDPSession, Page, expect, sync_playwright

from see import chosen, panel
from stage import CHROMIUM, LONG, TALK, THOUSANDS, Served, fill, served

RUNS = {TALK: 3, THOUSANDS: 3, LONG: 2}
"""Recordings, and layers of each."""
KEYS = ("ArrowLeft", "ArrowRight", "Shift+ArrowLeft", "[", "]", "{", "}", "1", "2", "r", "g", "l", "n", "End", "Home")

EVERY = 200
"""Steps between two looks at the memory, some 15 seconds."""
LINGERS_MS = 1500
"""How long a map may stay that is shown no more: its timers end first."""


@dataclass(frozen=True)
class Held:
    """Memory at a time.

    Attributes:
        seconds: since the start.
        steps: taken.
        heap: bytes that the page holds.
        nodes: that the page holds.
        server: bytes that the server holds, without pages of mapped files.
    """

    seconds: float
    steps: int
    heap: int
    nodes: int
    server: int

    def __str__(self) -> str:
        mebi = 2**20
        return (
            f"{self.seconds:6.0f} s {self.steps:6d} steps   heap {self.heap / mebi:7.2f} MiB   "
            f"nodes {self.nodes:6d}   server {self.server / mebi:7.1f} MiB"
        )


class Wanderer:
    """Takes steps on a page, the same ones for a seed.

    Args:
        page: that is open at the explorer.
        server: that it asks.
        seed: of the steps.
    """

    def __init__(self, page: Page, server: Served, seed: int = 7) -> None:
        self._page, self._server, self._draw = page, server, random.Random(seed)
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._began, self.steps = time.monotonic(), 0

    def step(self) -> None:
        """Do one thing that people do: choose, pan, zoom, jump, press a key, or open another recording."""
        doing = (self._choose, self._pan, self._pan, self._zoom, self._jump, self._head, self._press, self._press)
        draw = self._draw
        (self._open if draw.random() < 0.04 else draw.choice(doing))()
        self.steps += 1

    def begin(self) -> None:
        """Look at what every walk begins with."""
        self._page.goto(self._server.link(run=TALK, call=1, head=2))
        chosen(self._page, 733)

    def held(self) -> Held:
        """What is held where it began, once all that can be forgotten is."""
        self.begin()
        self._page.wait_for_load_state("networkidle")
        self._page.wait_for_timeout(LINGERS_MS)
        for _ in range(2):
            self._session.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in self._session.send("Performance.getMetrics")["metrics"]}
        seconds = time.monotonic() - self._began
        return Held(seconds, self.steps, int(found["JSHeapUsedSize"]), int(found["Nodes"]), self._server.own_memory())

    def _box(self, name: str, inner: str) -> dict[str, float] | None:
        place = panel(self._page, name).locator(inner).first
        found = place.bounding_box() if place.count() else None
        return None if found is None else dict(found)

    def _spot(self, box: dict[str, float]) -> tuple[float, float]:
        draw = self._draw
        return box["x"] + box["width"] * draw.uniform(0.1, 0.9), box["y"] + box["height"] * draw.uniform(0.1, 0.9)

    def _choose(self) -> None:
        box = self._box("Text", "[role=listbox]")
        if box is not None:
            self._page.mouse.click(*self._spot(box))

    def _pan(self) -> None:
        box = self._box("Map", "[role=application]")
        if box is None:
            return
        self._page.mouse.move(*self._spot(box))
        self._page.mouse.down()
        self._page.mouse.move(*self._spot(box), steps=3)
        self._page.mouse.up()

    def _zoom(self) -> None:
        box = self._box("Map", "[role=application]")
        if box is None:
            return
        self._page.mouse.move(*self._spot(box))
        self._page.mouse.wheel(0, self._draw.choice((-200, -100, 100, 300)))

    def _jump(self) -> None:
        box = self._box("Text", ".strip")
        if box is not None:
            self._page.mouse.click(*self._spot(box))

    def _head(self) -> None:
        pictures = panel(self._page, "Heads").locator(".thumb")
        count = pictures.count()
        if count:
            pictures.nth(self._draw.randrange(count)).dispatch_event("click")

    def _press(self) -> None:
        self._page.keyboard.press(self._draw.choice(KEYS))

    def _open(self) -> None:
        run = self._draw.choice(list(RUNS))
        self._page.goto(self._server.link(run=run, call=self._draw.randrange(RUNS[run]), head=self._draw.randrange(2)))


def series(page: Page, server: Served, every: int, seed: int = 7) -> Iterator[Held]:
    """Walk without end, and yield what is held after each so many steps."""
    wanderer = Wanderer(page, server, seed)
    wanderer.begin()
    while True:
        for _ in range(every):
            wanderer.step()
        yield wanderer.held()


def main(minutes: float) -> None:
    expect.set_options(timeout=60_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        served("--folder", fill(Path(folder))) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        page.on("pageerror", lambda error: print(f"page error: {error}", flush=True))
        page.on("console", lambda said: said.type == "error" and print(f"console: {said.text}", flush=True))
        for held in series(page, server, every=EVERY):
            print(held, flush=True)
            if held.seconds > 60 * minutes:
                break


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
