"""A sheet that a figure is drawn on (floor 6): from the top down, its title above, its legend and notes below."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from wherefrom.questions.maps import EMPTY, NOT_PERMITTED, NOT_RECORDED
from wherefrom.readable import LEFT_TO_RIGHT_MARK, printable
from wherefrom.recording import Recording, gaps_in_words
from wherefrom.views import picture
from wherefrom.views.colours import HAIRLINE, KINDS, QUIET, STEPS, kind_colours, ramp
from wherefrom.views.picture import Area, Box, Frame, Picture, Shape, Words, width_of

MARGIN, NOTE, TITLE = 16.0, 11.0, 15.0
LINE = 15.0
LEAST_WIDTH, WIDEST_TITLE = 460.0, 640.0
TITLE_ADVANCE = TITLE * 0.6
SIGNS = {
    "sink": "S", "previous": "P", "induction": "I", "duplicate": "D",
    "itself": "=", "local": "L", "broad": "B", "unknown": "?",
}  # fmt: skip
"""A sign for each kind, so that colour is never all there is."""
MARKS = {NOT_PERMITTED: picture.FORBIDDEN, EMPTY: picture.EMPTY, NOT_RECORDED: picture.UNRECORDED}
MARK_WORDS = {
    NOT_PERMITTED: "not permitted",
    EMPTY: "may read nothing: no row",
    NOT_RECORDED: "not recorded",
}


class Sheet:
    """A picture that is being drawn, from the top down.

    Attributes:
        x, y: how far to the right and down there is something, in pixels.
    """

    def __init__(self, title: str) -> None:
        self._title, self._shapes, self._notes = title, list[Shape](), list[str]()
        wide = min(WIDEST_TITLE, max(LEAST_WIDTH, TITLE_ADVANCE * len(title)))
        self.x, self.y = MARGIN + wide, MARGIN + TITLE + 14

    def add(self, *shapes: Shape) -> None:
        """Draw shapes, over those before."""
        self._shapes.extend(shapes)

    def take(self, right: float, bottom: float) -> None:
        """Say how far to the right and down there is something now."""
        self.x, self.y = max(self.x, right), max(self.y, bottom)

    def note(self, text: str) -> None:
        """Say something below."""
        self._notes.append(" ".join(text.split()))

    def legend(
        self, high: float, what: str, marks: Sequence[int] = (), *, low: float = 0.0, colours: Sequence[str] = ramp()
    ) -> None:
        """Draw the scale of colours, and the marks that occur."""
        x, y = MARGIN, self.y
        self.add(Words(x, y + 10, f"{low:.3g}", size=10))
        x += width_of(f"{low:.3g}", 10) + 6
        steps = range(0, STEPS, 4)
        self.add(*(Area(((x + 2 * place, y, 2.0, 12.0),), colours[step]) for place, step in enumerate(steps)))
        self.add(Frame((x, y, 2.0 * len(steps), 12.0), HAIRLINE))
        x += 2 * len(steps) + 6
        self.add(Words(x, y + 10, f"{high:.3g} {what}", size=10))
        x += width_of(f"{high:.3g} {what}", 10) + 18
        for mark in marks:
            box = x, y, 14.0, 12.0
            self.add(Area((box,), MARKS[mark]), Frame(box, HAIRLINE), Words(x + 20, y + 10, MARK_WORDS[mark], size=10))
            x += 20 + width_of(MARK_WORDS[mark], 10) + 14
        self.take(x, y + 26)

    def kinds(self, found: Counter[str]) -> None:
        """Draw the kinds of heads that there are, and how many."""
        x, y = MARGIN, self.y
        for kind in (name for name in KINDS if found[name]):
            words = f"{kind} {found[kind]}"
            if x > MARGIN and x + 24 + width_of(words, 10) > self.x:
                x, y = MARGIN, y + 20
            self.add(*head_of(kind, (x, y, 16.0, 14.0)), Words(x + 22, y + 11, words, size=10))
            x += 22 + width_of(words, 10) + 14
        self.take(self.x, y + 30)

    def done(self, recording: Recording, exactness: str, left_out: str = "") -> Picture:
        """Return the picture, with its title above and its notes below."""
        for sentence in (left_out, exactness, gaps_in_words(recording.gaps)):
            if sentence:
                self.note(sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith(".") else "."))
        letters = int((self.x - MARGIN) / (NOTE * 0.56))
        for note in self._notes:
            for line in textwrap.wrap(printable(note), letters):
                self.add(Words(MARGIN, self.y + NOTE, line, size=NOTE, colour=QUIET))
                self.take(0, self.y + LINE)
        title = textwrap.wrap(printable(self._title), int((self.x - MARGIN) / TITLE_ADVANCE))
        self.add(Words(MARGIN, MARGIN + TITLE, title[0] + (" …" if len(title) > 1 else ""), size=TITLE, bold=True))
        return Picture(self._title, tuple(self._notes), self.x + MARGIN, self.y + MARGIN, tuple(self._shapes))


def head_of(kind: str, box: Box) -> Iterator[Shape]:
    """Yield what a head of a kind is drawn as, within a box: its colours, and its sign."""
    strong, pale = kind_colours(kind)
    x, y, wide, high = box
    yield Area((box,), pale)
    yield Frame(box, strong)
    size = min(11.0, high - 3)
    yield Words(
        x + wide / 2, y + high / 2 + size * 0.36, SIGNS[kind], size=size, anchor="middle", bold=True, colour=strong
    )


def alone(label: str) -> str:
    """Return a label without the mark that keeps the rest of its line in order: here it has none."""
    return label.replace(LEFT_TO_RIGHT_MARK, "")
