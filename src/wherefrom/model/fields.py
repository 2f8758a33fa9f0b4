"""The fields of a Hugging Face ``config.json`` (floor 2), each read with its check.

A field that would change what the model computes, and that the transformer does not have, is refused by its name: a
model that runs a little differently from what its makers meant is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from wherefrom.checks import as_index
from wherefrom.errors import ModelError

DEFAULT_ROPE_BASE = 10_000.0  # transformers' own, where a config.json is silent


UNCOMPUTED = "Choose a model without it: running it otherwise would give other results."
"""The way out of a field whose value is sound, but not computed here."""


class Fields:
    """What a config.json says.

    Args:
        fields: the file's content.
        where: the file, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: Path) -> None:
        self.fields = fields
        self.where = where

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value; null counts as absent, as it does in transformers."""
        value = self.fields.get(name)
        return default if value is None else value

    def refuse(self, name: str, value: Any, supported: str, way_out: str = "") -> NoReturn:
        """Refuse a field: a `ModelError` that says what is supported."""
        raise ModelError(
            f"{self.where}: the field {name}",
            expected=supported,
            given="nothing" if value is None else f"{value!r}",
            way_out=way_out or "Copy the model's config.json again, or choose another model.",
            path=self.where,
            field=name,
            value=value,
        )

    def require(self, only: Mapping[str, Any]) -> None:
        """Refuse fields that change the result and have another value than the one that the transformer computes."""
        for name, supported in only.items():
            value = self.get(name, supported)
            if value != supported:
                self.refuse(
                    name,
                    value,
                    "none" if supported is None else f"{supported!r}, the only supported value",
                    UNCOMPUTED,
                )

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(name, value, "a whole number of at least 1")
        return value

    def positive(self, name: str, default: float) -> float:
        """Return a number above 0."""
        return self.checked_positive(name, self.get(name, default))

    def checked_positive(self, name: str, value: Any) -> float:
        """Return a value found under some name, if it is a number above 0."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            self.refuse(name, value, "a number above 0")
        return float(value)

    def switch(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """Return what a field's word stands for."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            self.refuse(name, value, "one of " + ", ".join(map(repr, choices)))
        return choices[value]

    def ids(self, name: str) -> tuple[int, ...]:
        """Return token ids, none where the field is silent."""
        value = self.get(name, [])
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            self.refuse(name, value, "a token id or a list of token ids")
        return tuple(listed)

    def never_ids(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens that are never written; an end mark among them counts as none, as in transformers."""
        value = self.get("bad_words_ids", [])
        alone = isinstance(value, list) and all(isinstance(entry, list) and len(entry) == 1 for entry in value)
        if not alone or not all(as_index(entry[0]) is not None and entry[0] >= 0 for entry in value):
            self.refuse("bad_words_ids", value, "a list of lists of one token id; longer ones are not kept from a text")
        return tuple(entry[0] for entry in value if entry[0] not in ends)

    def one_id(self, name: str) -> int | None:
        """Return the first token id of a field, or None."""
        return next(iter(self.ids(name)), None)

    def divisor(self, name: str, default: int, of: str, size: int) -> int:
        """Return a count that divides another field's."""
        value = self.count(name, default)
        if size % value:
            self.refuse(name, value, f"a divisor of {of}, {size}")
        return value

    def head_size(
        self, name: str, width_name: str, width: int, heads: int, *, even: bool = False, default: int | None = None
    ) -> int:
        """Return the size of a head: a field's, the family's own, or the width shared among the heads."""
        if self.get(name) is None and default is None and width % heads:
            self.refuse(width_name, width, f"a multiple of the {heads} heads, as {name} is not given")
        size = self.count(name, default or width // heads)
        if even and size % 2:
            self.refuse(name, size, "an even number, since the rotation turns pairs")
        return size

    def rope_base(self) -> float:
        """Return the rotation's base, under the old spelling (rope_theta) or the new (rope_parameters)."""
        bases = [self.get("rope_theta")]
        for name in ("rope_parameters", "rope_scaling"):
            rope = self.get(name, {})
            if not isinstance(rope, Mapping):
                self.refuse(name, rope, "an object")
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
                self.refuse(
                    name,
                    dict(rope),
                    "the plain rotation (rope_type 'default')",
                    "Choose a model whose rotation is not scaled.",
                )
            bases.append(rope.get("rope_theta"))
        given = [self.checked_positive("rope_theta", base) for base in bases if base is not None]
        if len(set(given)) > 1:
            self.refuse("rope_theta", given, "the same base in both spellings")
        return given[0] if given else DEFAULT_ROPE_BASE


def never_written(ids: Sequence[int]) -> dict[str, Any]:
    """Return tokens that are never written as a config.json has them: the field that `Fields.never_ids` reads."""
    return {"bad_words_ids": [[number] for number in ids]} if ids else {}
