"""Pictures of every view of the explorer, light and dark, wide and narrow, of recordings made here and now.

`PYTHONPATH=tests python tests/browser/screenshots.py FOLDER [NAME ...]` writes PNG files, all or those named.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

import wherefrom
from see import in_list, panel
from stage import CHROMIUM, Served, served

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
COLOURS = 256
"""Of a picture's palette."""
COUNCIL = """\
The council met on Tuesday in the old mill. Anna Keller, who kept the ledger, said that the harbour wall would \
not last another winter. Peter Moss, who kept the keys to the mill, said that there was no stone left on this \
side of the river.

"Then we carry it across the bridge," said Anna Keller. "The quarry at Weston has stone, and it is ours by \
right."

Nobody answered at first. The bridge at Weston had been closed since the flood, and the last cart that tried \
to cross it had lost a wheel. Peter Moss opened the map on the table and drew a line from the quarry to the \
harbour, past the church and the two farms by the river.

"Four days," he said. "Two to mend the bridge, and two to carry the stone."

They asked who would lead the carts. The farmers looked at the miller, and the miller looked at the door. In \
the end it was the teacher who stood up and said that she would go, if the council gave her six horses and the \
keys to the gate.

The council agreed. Anna Keller wrote it down in the ledger: six horses, four carts, four days, and the keys \
to the gate. When the meeting was over, the teacher walked home along the river and counted the stones that \
were left in the harbour wall. There were fewer than she remembered.

On Wednesday the carts left before dawn. The teacher rode in front, and the keys to the gate hung from her \
belt. At the bridge the farmers unloaded the timber, and by noon the first beams lay across the water. The \
quarry at Weston was in sight. The ledger was kept by Anna"""
ITALY = "The capital of Italy is Rome. The capital of Greece is Athens. The capital of Italy is"
TEXTS = {
    "council": COUNCIL,
    "italy": ITALY,
    "greece": ITALY.removesuffix("Italy is") + "Greece is",
}
IN_SIGHT = 22
"""The last layer whose heads fit on a wide page."""
LAYER, HEAD = 17, 5
"""A head that reads what followed the same token before."""


@dataclass(frozen=True)
class View:
    """One picture's page.

    Attributes:
        chosen: what stands in its address.
        ready: waits until all of it is there.
        narrow: it is taken on a telephone as well.
        shows: the panel that a telephone shows first; what is at the top unless given.
    """

    chosen: dict[str, object]
    ready: Callable[[Page], None]
    narrow: bool = False
    shows: str | None = None


def fill(folder: Path) -> Path:
    """Record every text below a folder."""
    model = wherefrom.load()
    for name, text in TEXTS.items():
        wherefrom.record(model, text, predictions="all", to=folder / f"{name}.wherefrom")
    return folder


def listed(page: Page) -> None:
    expect(in_list(page, "council")).to_be_visible()


def drawn(page: Page) -> None:
    expect(page.locator("[role=listbox] .token.chosen").first).to_be_visible()
    if page.viewport_size == WIDE:  # a telephone has fewer lines; the last layer that is in sight is read last
        expect(page.locator("[role=listbox] .token[style*='--glow']").first).to_be_attached()
        expect(panel(page, "Heads").get_by_role("button", name=f"Layer {IN_SIGHT}, head 8: ")).to_be_visible()
    expect(panel(page, "Map").locator("canvas.leaflet-tile-loaded:not(.stale)").first).to_be_visible()


def worked(page: Page) -> None:
    expect(panel(page, "Numbers").get_by_role("rowheader", name="sum")).to_be_visible()


def measured(page: Page) -> None:
    own = panel(page, "Evidence")
    press, done = own.get_by_role("button", name="measure", exact=True), own.get_by_text("Measured in")
    expect(press.or_(done)).to_be_visible(timeout=120_000)
    if press.is_visible():
        press.click()
    expect(done).to_be_visible(timeout=120_000)


def compared(page: Page) -> None:
    tiles = page.locator("canvas.leaflet-tile-loaded:not(.stale)")
    expect(tiles.nth(1)).to_be_visible()


def taught(page: Page) -> None:
    expect(page.get_by_role("heading", level=1).last).to_be_visible()


def helped(page: Page) -> None:
    drawn(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()


COUNCIL_HEAD = {"run": "council", "call": LAYER, "head": HEAD}
ITALY_HEAD = {"run": "italy", "call": LAYER, "head": HEAD}
ITALY_ALL = {"run": "italy", "call": LAYER, "every": "yes", "side": "evidence"}
VIEWS = {
    "list": View({}, listed, narrow=True),
    "explore": View(COUNCIL_HEAD, drawn, narrow=True),
    "cells": View({**ITALY_HEAD, "from": 5, "window": "9_6.5_4"}, drawn),
    "numbers": View({**ITALY_HEAD, "side": "numbers"}, worked, narrow=True, shows="Numbers"),
    "evidence": View(ITALY_ALL, measured, narrow=True, shows="Evidence"),
    "knockout": View({**ITALY_ALL, "lens": "knockout"}, measured),
    "compare": View({**ITALY_HEAD, "page": "compare", "beside": "greece"}, compared, narrow=True),
    **{f"lesson-{step}": View({"page": "lesson", "step": step}, taught, narrow=step == 1) for step in range(1, 7)},
    "help": View(COUNCIL_HEAD, helped),
}


def shoot(page: Page, server: Served, view: View, theme: Literal["light", "dark"]) -> bytes:
    """Open a view and return its picture, as a PNG of few colours."""
    page.goto("about:blank")
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(server.link(**view.chosen))
    view.ready(page)
    page.mouse.move(2, 2)
    if view.shows is not None and page.viewport_size == NARROW:
        panel(page, view.shows).evaluate("place => place.scrollIntoView()")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    few = io.BytesIO()
    picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE).save(
        few, "PNG", optimize=True
    )
    return few.getvalue()


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=90_000)
    with (
        tempfile.TemporaryDirectory() as runs,
        served("--folder", fill(Path(runs))) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(reduced_motion="reduce")
        total = 0
        for name in names or VIEWS:
            for size, ending in ((WIDE, ""), (NARROW, "-narrow"))[: 1 + VIEWS[name].narrow]:
                page.set_viewport_size(size)
                for theme in THEMES if size is WIDE else THEMES[:1]:
                    file = folder / f"{name}{ending}{'' if theme == 'light' else '-dark'}.png"
                    file.write_bytes(shoot(page, server, VIEWS[name], theme))
                    total += file.stat().st_size
                    print(f"{file}  {file.stat().st_size / 1024:.0f} KiB", flush=True)
        print(f"{total / 2**20:.2f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
