"""`wherefrom explore` whose measuring stands still for as long as a file is there: `python held.py FILE explore ...`.

What a page shows while something is measured can then be looked at without a race against a fast machine. Nothing else
is different: the work can be cancelled while it stands still, and goes on when the file is gone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from wherefrom.__main__ import main
from wherefrom.cli.measuring import ModelMeasurer
from wherefrom.recording import Recording
from wherefrom.views.web.jobs import Progress, Wish
from wherefrom.views.web.wire import Message

STEP = 0.02
"""Seconds between two looks whether it may go on."""


class HeldMeasurer(ModelMeasurer):
    """Measures, and waits at each word of progress while the file is there."""

    hold: Path

    def measure(self, recording: Recording, wish: Wish, progress: Progress) -> Message:
        """Return what was found."""

        def told(what: str, done: int, total: int) -> None:
            progress(what, done, total)
            while self.hold.exists():
                time.sleep(STEP)
                progress(what, done, total)  # it may be cancelled meanwhile

        return super().measure(recording, wish, told)


if __name__ == "__main__":
    import wherefrom.cli.explore

    HeldMeasurer.hold = Path(sys.argv.pop(1))
    wherefrom.cli.explore.ModelMeasurer = HeldMeasurer  # type: ignore[misc]
    main()
