"""A picture (floor 6): areas, lines and words at places, and its two ways out, SVG and PNG, drawn from the same list.

Nothing here knows what is shown. An SVG is our own few elements, the same bytes every time; a PNG needs Pillow, and a
font that has the letters: where none has, that is refused, and no box stands in a letter's place.
"""

from __future__ import annotations

import io
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from rich.cells import cell_len

from wherefrom.errors import InputError
from wherefrom.readable import RIGHT_TO_LEFT, printable
from wherefrom.views.colours import GROUND, INK, QUIET

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

SANS, MONO = "sans", "mono"
FAMILIES = {
    SANS: "'DejaVu Sans', Verdana, 'Noto Sans', sans-serif",
    MONO: "'DejaVu Sans Mono', Menlo, Consolas, 'Noto Sans Mono', monospace",
}
FILES = {SANS: ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"), MONO: ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf")}
ADVANCE = 0.602
"""Width of a cell of the even font, in its size."""
SHARPNESS = 2.0
"""Pixels of a PNG to a unit of length, unless told otherwise."""
FORBIDDEN, EMPTY, UNRECORDED = "forbidden", "empty", "unrecorded"
"""Fills that are no colour: hairline diagonals, hatched both ways, dots. They never look like data."""
HATCH = 8
NOT_A_LETTER = "\U0010ffff"
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, width, height."""


@dataclass(frozen=True)
class Area:
    """Boxes of one fill, a colour or one of the marks."""

    boxes: tuple[Box, ...]
    fill: str


@dataclass(frozen=True)
class Frame:
    """The line around a box."""

    box: Box
    colour: str
    width: float = 1.0


@dataclass(frozen=True)
class Words:
    """Some words, on one line.

    Attributes:
        x, y: where the line begins, or ends, or has its middle; y is that of the foot of its letters.
        text: as it is seen: what does not print is escaped.
        anchor: "start", "middle" or "end".
        turned: read from below, along a column.
        cells: how many cells of the even font they take exactly; 0 for as many as they need.
    """

    x: float
    y: float
    text: str
    size: float = 11.0
    colour: str = INK
    anchor: str = "start"
    font: str = SANS
    bold: bool = False
    turned: bool = False
    cells: int = 0


Shape: TypeAlias = Area | Frame | Words


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        title: what is seen.
        notes: what it means and what it leaves out, sentence by sentence; they are drawn too.
        width, height: in units of length, a pixel of a screen each.
        shapes: in the order of drawing.
    """

    title: str
    notes: tuple[str, ...]
    width: float
    height: float
    shapes: tuple[Shape, ...] = field(repr=False)

    def svg(self) -> str:
        """Return the picture as SVG."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {_number(self.width)} {_number(self.height)}" role="img">',
            f"<title>{escape(printable(self.title))}</title>",
            f"<desc>{escape(printable(' '.join(self.notes)))}</desc>",
            PATTERNS,
            f'<rect width="100%" height="100%" fill="{GROUND}"/>',
            *map(_element, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self, sharpness: float = SHARPNESS, font: Path | None = None) -> bytes:
        """Return the picture as PNG.

        Args:
            sharpness: pixels to a unit of length.
            font: a file with letters that DejaVu Sans has not.

        Raises:
            InputError: Pillow is not there; letters that no font here has.
        """
        return _Canvas(self, sharpness, font).png()

    def _repr_svg_(self) -> str:
        return self.svg()


PATTERNS = f"""<defs>
<pattern id="forbidden" width="{HATCH}" height="{HATCH}" patternUnits="userSpaceOnUse">\
<path d="M-1 {HATCH + 1}L{HATCH + 1} -1" stroke="{QUIET}" stroke-opacity=".45" stroke-width=".6"/></pattern>
<pattern id="empty" width="{HATCH}" height="{HATCH}" patternUnits="userSpaceOnUse">\
<path d="M0 {HATCH}L{HATCH} 0M0 0L{HATCH} {HATCH}" stroke="{QUIET}" stroke-opacity=".6" stroke-width=".8"/></pattern>
<pattern id="unrecorded" width="{HATCH}" height="{HATCH}" patternUnits="userSpaceOnUse">\
<circle cx="{HATCH / 2:g}" cy="{HATCH / 2:g}" r=".9" fill="{QUIET}" fill-opacity=".6"/></pattern>
</defs>"""


def _element(shape: Shape) -> str:
    if isinstance(shape, Area):
        fill = shape.fill if shape.fill.startswith("#") else f"url(#{shape.fill})"
        way = "".join(
            f"M{_number(x)} {_number(y)}h{_number(wide)}v{_number(high)}h{_number(-wide)}z"
            for x, y, wide, high in shape.boxes
        )
        return f'<path fill="{fill}" shape-rendering="crispEdges" d="{way}"/>'
    if isinstance(shape, Frame):
        x, y, wide, high = map(_number, shape.box)
        return (
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="none" stroke="{shape.colour}" '
            f'stroke-width="{_number(shape.width)}"/>'
        )
    x, y = _number(shape.x), _number(shape.y)
    place = f'transform="translate({x} {y}) rotate(-90)"' if shape.turned else f'x="{x}" y="{y}"'
    exact = f' textLength="{_number(shape.cells * ADVANCE * shape.size)}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text {place} font-family={quoteattr(FAMILIES[shape.font])} font-size="{_number(shape.size)}" '
        f'fill="{shape.colour}"'
        + (f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else "")
        + (' font-weight="bold"' if shape.bold else "")
        + (exact if shape.cells else "")
        + f' xml:space="preserve">{escape(printable(shape.text))}</text>'
    )


def _number(value: float) -> str:
    return f"{round(value, 2) + 0.0:g}"  # adding 0 turns -0 into 0


def cells_of(text: str) -> int:
    """Return how many cells of the even font a text takes."""
    return cell_len(text)


def width_of(text: str, size: float, font: str = SANS) -> float:
    """Return about how wide a text is, rather more; of the even font exactly."""
    return cell_len(text) * size * (ADVANCE if font == MONO else 0.62)


class _Canvas:
    """A picture as pixels."""

    def __init__(self, picture: Picture, sharpness: float, font: Path | None) -> None:
        try:
            from PIL import Image, ImageChops, ImageDraw, ImageFont, features
        except ImportError:
            raise InputError(
                "a PNG",
                expected="Pillow, which draws it",
                given="none",
                way_out="pip install 'wherefrom[png]', or write an SVG.",
            ) from None
        self._picture, self._by, self._font = picture, sharpness, font
        self._images, self._chops, self._drawing, self._fonts = Image, ImageChops, ImageDraw, ImageFont
        self._ordered = bool(features.check("raqm") and features.check("fribidi"))  # letters that run right to left
        size = round(picture.width * sharpness), round(picture.height * sharpness)
        self._image = Image.new("RGB", size, GROUND)
        self._pen = ImageDraw.Draw(self._image)
        self._known: dict[Any, Any] = {}

    def png(self) -> bytes:
        self._require_letters()
        for shape in self._picture.shapes:
            if isinstance(shape, Area):
                self._area(shape)
            elif isinstance(shape, Frame):
                x, y, wide, high = (round(self._by * part) for part in shape.box)
                width = max(1, round(self._by * shape.width))
                self._pen.rectangle((x, y, x + wide, y + high), outline=shape.colour, width=width)
            else:
                self._words(shape)
        out = io.BytesIO()
        self._image.save(out, "PNG", optimize=True)
        return out.getvalue()

    def _area(self, area: Area) -> None:
        boxes = [
            (round(x * self._by), round(y * self._by), round((x + wide) * self._by), round((y + high) * self._by))
            for x, y, wide, high in area.boxes
        ]
        if area.fill.startswith("#"):
            for left, top, right, bottom in boxes:
                self._pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=area.fill)
            return
        where = self._images.new("L", self._image.size, 0)
        pen = self._drawing.Draw(where)
        for left, top, right, bottom in boxes:
            pen.rectangle((left, top, right - 1, bottom - 1), fill=255)
        self._image.paste(QUIET, mask=self._chops.multiply(where, self._pattern(area.fill)))

    def _pattern(self, name: str) -> Any:
        """Return how strongly each pixel of a mark is drawn, over the whole picture."""
        wide, high = self._image.size
        lines = self._images.new("L", (wide, high), 0)
        pen, step = self._drawing.Draw(lines), HATCH * self._by
        if name == UNRECORDED:
            radius = 0.9 * self._by
            for row in range(int(high / step) + 1):
                for column in range(int(wide / step) + 1):
                    x, y = (column + 0.5) * step, (row + 0.5) * step
                    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=150)
            return lines
        thickness = max(1, round(0.6 * self._by))
        for at in range(int((wide + high) / step) + 2):
            pen.line((at * step, 0, at * step - high, high), fill=115, width=thickness)
            if name == EMPTY:
                pen.line((wide - at * step, 0, wide - at * step + high, high), fill=150, width=thickness)
        return lines

    def _words(self, words: Words) -> None:
        text = printable(words.text)
        font = self._of(words, text)
        assert font is not None, "the letters were looked for"
        place = words.x * self._by, words.y * self._by
        anchor = {"start": "l", "middle": "m", "end": "r"}[words.anchor] + "s"
        if not words.turned:
            self._pen.text(place, text, fill=words.colour, font=font, anchor=anchor)
            return
        left, top, right, bottom = (int(part) for part in self._pen.textbbox((0, 0), text, font=font, anchor=anchor))
        line = self._images.new("L", (right - left + 2, bottom - top + 2), 0)
        self._drawing.Draw(line).text((1 - left, 1 - top), text, fill=255, font=font, anchor=anchor)
        turned = line.rotate(90, expand=True)
        self._image.paste(words.colour, (round(place[0] + top - 1), round(place[1] - right - 1)), turned)

    def _of(self, words: Words, text: str) -> FreeTypeFont | None:
        """Return the first font that has the letters; None where none has."""
        size = round(words.size * self._by)
        own = *(self._loaded(FILES[kind][words.bold], size) for kind in (words.font, SANS)), self._given(size)
        return next((font for font in own if font is not None and not self._missing(font, text)), None)

    def _loaded(self, name: str, size: int) -> FreeTypeFont:
        """Return DejaVu, where the machine has it, or Pillow's own font, which has Latin letters."""
        if (name, size) not in self._known:
            try:
                found: Any = self._fonts.truetype(name, size)
            except OSError:
                found = self._fonts.load_default(size)
            self._known[name, size] = found
        font: FreeTypeFont = self._known[name, size]
        return font

    def _given(self, size: int) -> FreeTypeFont | None:
        if self._font is None:
            return None
        try:
            return self._fonts.truetype(str(self._font), size)
        except OSError as error:
            raise InputError(
                "the font",
                expected="a font's file",
                given=f"{self._font} ({error})",
                way_out="Name a .ttf, .otf or .ttc file.",
            ) from None

    def _missing(self, font: FreeTypeFont, text: str) -> set[str]:
        """Return the letters that a font draws as it draws what it does not know."""
        key = font.path, font.size
        none = self._known.setdefault((key, "none"), bytes(font.getmask(NOT_A_LETTER)))
        return {
            letter
            for letter in set(text) - {" ", "\u200e"}
            if self._known.setdefault((key, letter), bytes(font.getmask(letter))) == none
        }

    def _require_letters(self) -> None:
        missing: set[str] = set()
        for words in (shape for shape in self._picture.shapes if isinstance(shape, Words)):
            text = printable(words.text)
            if self._of(words, text) is None:
                missing |= self._missing(self._loaded(FILES[SANS][words.bold], round(words.size * self._by)), text)
            if not self._ordered:
                missing |= {letter for letter in text if unicodedata.bidirectional(letter) in RIGHT_TO_LEFT}
        if missing:
            shown = ", ".join(sorted(missing)[:8]) + (", ..." if len(missing) > 8 else "")
            raise InputError(
                "a PNG of this text",
                expected="letters that the fonts here draw",
                given=shown,
                way_out="Write an SVG, which whoever looks draws with their own fonts, or name a font that has them.",
            )
