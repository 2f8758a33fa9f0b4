"""Text that a person can see (floor 1): what does not print becomes an escape, what prints stays as it is.

`wherefrom.tokens` beside it labels tokens with it, and gives it on. No torch.
"""

from __future__ import annotations

import unicodedata

LEFT_TO_RIGHT_MARK = "\u200e"
DOTTED_CIRCLE = "\u25cc"
RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
# Python calls these printable, yet they draw nothing: grapheme joiner, fillers, blank braille.
INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


def readable(text: str) -> str:
    r"""Text as a person can see it in a terminal, on one line, without touching what prints.

    Characters that print stay as they are. Controls, zero-width and bidirectional controls and blanks other
    than the plain one become escapes (``\n``, ``\x1b``, ``\u202e``). A combining mark with nothing to sit on
    gets a dotted circle. Text with right-to-left letters ends in a LEFT-TO-RIGHT MARK, so that it does not
    reorder the rest of its line.

    >>> print(readable("a\tb\u200d"))
    a\tb\u200d
    """
    shown: list[str] = []
    stands_alone = True  # nothing, or an escape that a mark must not decorate, comes before
    for character in text:
        if not character.isprintable() or character in INVISIBLE:
            shown.append(escape(character))
            stands_alone = True
            continue
        if stands_alone and unicodedata.category(character).startswith("M"):
            shown.append(DOTTED_CIRCLE)
        shown.append(character)
        stands_alone = False
    if any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for piece in shown for letter in piece):
        shown.append(LEFT_TO_RIGHT_MARK)
    return "".join(shown)


def printable(text: str) -> str:
    r"""Text whose characters all print: any other becomes an escape, but for the mark that `readable` ends with.

    >>> print(printable("a\x1b[31m\n"))
    a\x1b[31m\n
    """
    return "".join(c if c.isprintable() or c == LEFT_TO_RIGHT_MARK else escape(c) for c in text)


def escape(character: str) -> str:
    """Return one character as Python writes it in a string."""
    code = ord(character)
    if character in SHORT_ESCAPES:
        return SHORT_ESCAPES[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
