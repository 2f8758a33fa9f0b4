"""Whether the arrays of a recording's files fit one another and the tokens (floor 2), by their kinds and shapes alone.

Takes the layout from beside it. Both the writer, before a call is written, and the reader, when a folder is opened, ask
it; no number of an array is read. Each size has a letter, those of `wherefrom.attention`, and must be the same wherever
its letter stands:

    H heads kept, T destinations kept, N destinations in all, A heads in all, D, V, K, S, M; C checks, R rows in them
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from wherefrom.recording.layout import FORMATS, PREDICTIONS, TOKENS, CallFacts, Manifest
from wherefrom.recording.strict import COPY_AGAIN, broken
from wherefrom.recording.tensors import Spec

Form: TypeAlias = tuple[tuple[str, ...], str]  # the kinds of numbers that are permitted, and a letter or digit a size
FLOATS = ("F16", "BF16", "F32", "F64")
WHOLE, DOUBLE, FLAGS, BYTES = ("I64",), ("F64",), ("BOOL",), ("U8",)
CALL: dict[str, Form] = {
    "q": (FLOATS, "HTD"),
    "k": (FLOATS, "KSD"),
    "v": (FLOATS, "KSV"),
    "lse": (("F32",), "HT"),
    "checks.rows": (WHOLE, "R"),
    "checks.ends": (WHOLE, "C"),
    "checks.found": (DOUBLE, "C3"),
}
KEPT: dict[str, Form] = {"rows": (WHOLE, "T")}
OPTIONAL: dict[str, tuple[Form, ...]] = {  # each in one of some forms, or not there
    "bias": ((FLOATS, "HTS"), (FLOATS, "1TS")),
    "sinks": ((FLOATS, "H"),),
    "output": ((FLOATS, "HMV"),),
    "padding": ((FLAGS, "S"),),
    "explicit": ((FLAGS, "NS"), (FLAGS, "ANS")),
}
OF_TOKENS: dict[str, Form] = {
    "ids": (WHOLE, "T"),
    "spans": (WHOLE, "T2"),
    "data": (BYTES, "B"),
    "data.ends": (WHOLE, "T"),
    "labels": (BYTES, "L"),
    "labels.ends": (WHOLE, "T"),
    "text": (BYTES, "X"),
}
OF_SOURCE = {f"source.{name}": (kinds, sizes.lower()) for name, (kinds, sizes) in OF_TOKENS.items()}
OF_PREDICTIONS: dict[str, Form] = {
    "positions": (WHOLE, "P"),
    "ids": (WHOLE, "PK"),
    "log_probabilities": (DOUBLE, "PK"),
    "label.ids": (WHOLE, "D"),
    "labels": (BYTES, "L"),
    "labels.ends": (WHOLE, "D"),
    "next.rows": (WHOLE, "N"),
    "next.ids": (WHOLE, "N"),
    "next.log_probabilities": (DOUBLE, "N"),
}


class _Fit:
    """The arrays of one file, held against the forms that they should have."""

    def __init__(self, path: Path, file: str, specs: Mapping[str, Spec], way_out: str, **facts: object) -> None:
        self.path, self.file, self.specs, self.way_out, self.facts = path, file, specs, way_out, facts
        self.sizes = {str(digit): digit for digit in range(10)}

    def refuse(self, name: str, expected: str, given: str) -> None:
        what = f"{name} in {self.file}"
        broken(self.path, what, expected=expected, given=given, way_out=self.way_out, file=self.file, **self.facts)

    def names(self, needed: Mapping[str, Form], optional: Mapping[str, object]) -> None:
        """Refuse an array that is missing, and one that has no meaning."""
        for name in needed:
            if name not in self.specs:
                self.refuse(f"the array {name!r}", "it", "none of that name")
        for name in self.specs:
            if name not in needed and name not in optional:
                self.refuse(f"the array {name[:40]!r}", "no array beyond those of the format", "one")

    def one(self, name: str, *forms: Form) -> None:
        """Refuse an array that has none of some forms; the first of as many dimensions is the one that is meant."""
        spec = self.specs[name]
        for kinds, sizes in forms:
            bound = dict(self.sizes)
            same = len(sizes) == len(spec.shape) and all(
                bound.setdefault(letter, size) == size for letter, size in zip(sizes, spec.shape, strict=True)
            )
            if same and spec.dtype in kinds:
                self.sizes = bound
                return
        shapes = " or ".join(self._shape(sizes) for _, sizes in forms)
        self.refuse(name, f"{' or '.join(forms[0][0])} of shape {shapes}", f"{spec.dtype} of shape {list(spec.shape)}")

    def _shape(self, sizes: str) -> str:
        return "[" + ", ".join(str(self.sizes.get(letter, letter)) for letter in sizes) + "]"


def check_call(path: Path, call: CallFacts, specs: Mapping[str, Spec], way_out: str = COPY_AGAIN) -> dict[str, int]:
    """Return the sizes of a call by their letters.

    Raises:
        RecordingError: arrays are missing, without meaning, of a wrong kind, or do not fit one another.
    """
    fit = _Fit(path, call.file, specs, way_out, layer=call.layer)
    needed = CALL if call.kept is None else CALL | KEPT
    fit.names(needed, OPTIONAL)
    for name, form in needed.items():
        fit.one(name, form)
    _check_heads(fit, call)
    for name, forms in OPTIONAL.items():
        if name in specs:
            fit.one(name, *forms)
    if call.softcap is not None and call.softcap <= 0:
        fit.refuse("the softcap", "a number above 0", str(call.softcap))
    if call.stored is not None:
        _check_stored(fit, call.stored.format, call.stored.rows)
    return fit.sizes


def _check_heads(fit: _Fit, call: CallFacts) -> None:
    heads, key_heads, kept = fit.sizes["H"], fit.sizes["K"], call.kept
    empty = [letter for letter in "HTKSDV" if not fit.sizes[letter]]
    if empty:  # no size is then larger than the file
        fit.refuse("q, k and v", "a size of one at least everywhere", f"{', '.join(empty)} of 0")
    if kept is None:
        if heads % key_heads:
            fit.refuse("q and k", f"heads that are a multiple of {key_heads} key heads", f"{heads}")
        fit.sizes |= {"A": heads, "N": fit.sizes["T"]}
        return
    ascending = all(one < other for one, other in zip(kept.heads, kept.heads[1:], strict=False))
    if len(kept.heads) != heads or not ascending or kept.heads[-1] >= kept.of_heads:
        fit.refuse("kept heads", f"{heads} of {kept.of_heads}, ascending", _few(kept.heads))
    if len(kept.key_heads) != heads or max(kept.key_heads) >= key_heads:
        fit.refuse("kept key heads", f"for each of {heads} heads one of {key_heads}", _few(kept.key_heads))
    if fit.sizes["T"] > kept.of_rows:
        fit.refuse("rows", f"{kept.of_rows} destinations at most", f"{fit.sizes['T']}")
    fit.sizes |= {"A": kept.of_heads, "N": kept.of_rows}


def _check_stored(fit: _Fit, rounded: str, rows: tuple[int, ...]) -> None:
    for name in ("q", "k", "v"):
        if fit.specs[name].dtype != FORMATS[rounded]:
            fit.refuse(name, f"{FORMATS[rounded]}, as its call says that it was rounded", fit.specs[name].dtype)
    if max(rows, default=0) >= max(fit.sizes["N"], 1):
        fit.refuse("the rows looked at when it was rounded", f"destinations below {fit.sizes['N']}", _few(rows))


def _few(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") if numbers else "none"


def check_tokens(path: Path, specs: Mapping[str, Spec], way_out: str = COPY_AGAIN) -> tuple[int, int | None]:
    """Return how many tokens there are, and how many an encoder read beside; None without one.

    Raises:
        RecordingError: arrays are missing, without meaning, of a wrong kind, or do not fit one another.
    """
    fit = _Fit(path, TOKENS, specs, way_out)
    needed = OF_TOKENS | (OF_SOURCE if any(name.startswith("source.") for name in specs) else {})
    fit.names(needed, {})
    for name, form in needed.items():
        fit.one(name, form)
    return fit.sizes["T"], fit.sizes.get("t")


def check_predictions(path: Path, specs: Mapping[str, Spec], tokens: int, way_out: str = COPY_AGAIN) -> None:
    """Refuse arrays of predictions that do not fit.

    Raises:
        RecordingError: arrays are missing, without meaning, of a wrong kind, or do not fit one another.
    """
    fit = _Fit(path, PREDICTIONS, specs, way_out)
    fit.names(OF_PREDICTIONS, {})
    for name, form in OF_PREDICTIONS.items():
        fit.one(name, form)
    if fit.sizes["N"] > fit.sizes["P"] or fit.sizes["P"] > tokens:
        expected = f"{tokens} predictions at most, and no more next tokens than predictions"
        fit.refuse("positions", expected, f"{fit.sizes['P']} and {fit.sizes['N']}")


def check_agreement(path: Path, manifest: Manifest, way_out: str = COPY_AGAIN) -> None:
    """Refuse a recording whose files do not fit one another.

    Raises:
        RecordingError: what does not fit, of which file.
    """
    tokens, sources = check_tokens(path, manifest.files[TOKENS].tensors, way_out)
    check_predictions(path, manifest.files[PREDICTIONS].tensors, tokens, way_out)
    if manifest.written_from is not None and manifest.written_from > tokens:
        given = str(manifest.written_from)
        broken(path, "written_from", expected=f"one of {tokens} tokens", given=given, way_out=way_out)
    for call in manifest.calls:
        sizes = check_call(path, call, manifest.files[call.file].tensors, way_out)
        if manifest.version == 1:  # which knew no positions but those of a text
            _check_lengths(path, call, sizes, tokens, tokens if sources is None else sources, way_out)


def _check_lengths(
    path: Path, call: CallFacts, sizes: Mapping[str, int], tokens: int, encoded: int, way_out: str
) -> None:
    read = tokens if call.part == "decoder" and call.kind == "self" else encoded
    reading = encoded if call.part == "encoder" else tokens
    for what, size, most in (("destinations", sizes["N"], reading), ("sources", sizes["S"], read)):
        if size > most:
            what = f"the {what} of {call.file}"
            expected = f"as many as tokens, {most}, at most"
            broken(path, what, expected=expected, given=f"{size}", way_out=way_out, layer=call.layer)
