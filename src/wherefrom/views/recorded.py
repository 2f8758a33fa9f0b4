"""What a recording's folder holds (floor 6): said without loading q, k, v or anything else that grows with the model.

It takes a recording that was opened and gives its facts as plain values, and those as lines. What is read of the calls'
files is their self-checks and the numbers of the destinations that were kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from shlex import quote
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.readable import printable, readable
from wherefrom.recording import Call, Prediction, Recording, gaps_as_json, gaps_in_words, part_named
from wherefrom.recording.call import STAGES
from wherefrom.recording.gaps import NO_ATTENTION, Gap
from wherefrom.recording.layout import FORMATS, MANIFEST, PREDICTIONS, SCANS, TOKENS, CallFacts, Manifest, read_manifest
from wherefrom.recording.strict import broken
from wherefrom.spans import Tokens
from wherefrom.views.answers import WIDTH, flowing
from wherefrom.views.cells import count, fitted, percent, quoted
from wherefrom.views.cost import size

NAME = 13
"""Cells of a fact's name and the blank behind it."""
EXCERPT = 60
"""Characters of a text's beginning and of its end."""
PARTS = ("q", "k", "v", "lse", "output", "bias", "sinks")
MASKS = ("padding", "explicit")
TOKEN = 40
"""Cells of a token's label at most."""
RANGES = 8
"""So many ranges of what is kept are listed, then counted."""
GAPS = 20
"""So many modules whose attention is not recorded are listed, then counted."""


def recording_facts(recording: Recording) -> dict[str, Any]:
    """Return what a recording is, as what `json.dumps` takes. The logarithm of a probability of 0 is None there.

    Args:
        recording: from `wherefrom.open_recording`.

    Raises:
        InputError: it is in memory.
        RecordingError: its folder is not as it was when it was opened.
    """
    folder = recording.path
    if folder is None:
        expected, way_out = "one that was opened from a file", "Save it with save_recording, and open that."
        raise InputError("the recording", expected=expected, given="one in memory", way_out=way_out)
    try:
        return _facts_in(folder, recording)
    except OSError as error:
        expected, given = "the folder as it was when it was opened", f"{error}".rstrip(".")
        broken(folder, "the recording", expected=expected, given=given)


def _facts_in(folder: Path, recording: Recording) -> dict[str, Any]:
    manifest, source = read_manifest(folder), recording.source
    return {
        "path": str(folder),
        "written_by": manifest.written_by,
        "model": asdict(recording.model),
        "tokens": len(recording),
        "text": _excerpt(recording.tokens.text),
        "source_tokens": None if source is None else len(source),
        "source_text": None if source is None else _excerpt(source.text),
        "written_from": recording.written_from,
        "seconds": recording.seconds,
        "calls": [_kind(calls, manifest, recording) for calls in _alike(recording.calls)],
        "gaps": gaps_as_json(recording.gaps),
        "bytes": _sizes(manifest, folder),
        "checks": checks_of(recording),
        "stored": stored_of(recording),
        "predictions": _predictions(recording),
        "scans": _scans(folder, manifest),
        "units": {"bytes": "bytes", "log_probability": "nats", "seconds": "wall clock", "positions": "from 0"},
    }


def checks_of(recording: Recording) -> dict[str, Any]:
    """Return how many calls checked themselves, and the largest error that was found, None where nothing was."""
    found = [max(c.sum_error, c.output_error) for call in recording.calls for c in call.checks]
    calls = sum(bool(call.checks) for call in recording.calls)
    return {"calls": calls, "of": len(recording.calls), "largest_error": max(found, default=None)}


def stored_of(recording: Recording) -> dict[str, Any] | None:
    """Return what rounding did to the weights in any call; None where nothing was rounded."""
    stored = [call.stored for call in recording.calls if call.stored is not None]
    if not stored:
        return None
    return {
        "format": stored[0].format,
        "calls": len(stored),
        "weight_error": max(one.weight_error for one in stored),
        "sum_error": max(one.sum_error for one in stored),
    }


def _excerpt(text: str) -> dict[str, Any]:
    """Return a text's beginning and its end; all of it as its beginning where it is short."""
    short = len(text) <= 2 * EXCERPT
    return {
        "characters": len(text),
        "begins": text if short else text[:EXCERPT],
        "ends": "" if short else text[-EXCERPT:],
    }


def _alike(calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls in groups of one part and kind, in their order."""
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.part, call.kind), []).append(call)
    return list(groups.values())


def _kind(calls: Sequence[Call], manifest: Manifest, recording: Recording) -> dict[str, Any]:
    """Return what is kept of the calls of one part and kind; of heads and positions, what the first of them keeps.

    `alike`: whether the others keep the same heads and as many positions; `whole`: whether each keeps all that it has.
    How many layers a part has is known of the text's parts alone, else None.
    """
    first = calls[0]
    facts = [facts for facts in manifest.calls if (facts.part, facts.kind) == (first.part, first.kind)]
    without = [layer for layer, gap in recording.gaps_of(first.part).items() if gap.what == NO_ATTENTION]
    tensors = [manifest.files[one.file].tensors for one in facts]
    formats = {name: key for key, name in FORMATS.items()}
    return {
        "part": first.part,
        "kind": first.kind,
        "layers": sorted({call.layer for call in calls}),
        "of_layers": recording.layers_of(first.part) if first.part in STAGES else None,
        "without_attention": sorted(without),
        "executions": len(calls),
        "heads": list(first.head_numbers),
        "of_heads": first.all_heads,
        "positions": "all" if first.all_rows else [int(row) for row in first.rows],
        "of_positions": first.destinations,
        "alike": len({(call.head_numbers, call.shapes["q"][1]) for call in calls}) == 1,
        "whole": all(call.heads == call.all_heads and call.all_rows for call in calls),
        "formats": sorted({formats[one["q"].dtype] for one in tensors}),
        "output": all("output" in one for one in tensors),
        "kernels": list(dict.fromkeys(one.kernel for one in facts)),
        "masks": list(dict.fromkeys(_mask(one, names) for one, names in zip(facts, tensors, strict=True))),
    }


def _mask(facts: CallFacts, names: Mapping[str, Any]) -> str:
    """Return a call's mask in words, and whatever else there is beside q . k; the arrays are not looked at."""
    said = ["causal" if facts.causal else "bidirectional"]
    if facts.window is not None:
        said.append(f"window of {count(facts.window, 'key')}")
    if facts.offset:
        said.append(f"from position {facts.offset} on")
    said += [f"{name} mask" for name in MASKS if name in names]
    if facts.softcap is not None:
        said.append(f"softcap {facts.softcap:g}")
    said += [word for name, word in (("bias", "a bias on scores"), ("sinks", "sinks")) if name in names]
    return ", ".join(said)


def _sizes(manifest: Manifest, folder: Path) -> dict[str, int]:
    """Return the bytes of a recording by part; scans are beside it and not in the sum."""
    found = dict.fromkeys(PARTS, 0)
    for call in manifest.calls:
        for name, spec in manifest.files[call.file].tensors.items():
            if name in found:
                found[name] += spec.bytes
    found["tokens"], found["predictions"] = (manifest.files[name].bytes for name in (TOKENS, PREDICTIONS))
    total = (folder / MANIFEST).stat().st_size + sum(file.bytes for file in manifest.files.values())
    return {name: size for name, size in found.items() if size} | {"rest": total - sum(found.values()), "total": total}


def _predictions(recording: Recording) -> dict[str, Any]:
    kept = recording.predictions
    return {"kept": len(kept), "last": _prediction(kept[-1], recording.tokens) if kept else None}


def _prediction(prediction: Prediction, tokens: Tokens) -> dict[str, Any]:
    """Return a prediction; without labels of its own, that of a token is known only if the text has it somewhere."""
    ids = tokens.ids
    known = dict(zip(prediction.ids, prediction.labels, strict=False))
    known = known or {number: tokens[ids.index(number)].label for number in prediction.ids if number in ids}
    likeliest = [
        {"id": number, "label": known.get(number), "log_probability": None if value == -math.inf else value}
        for number, value in zip(prediction.ids, prediction.log_probabilities, strict=True)
    ]
    return {"position": prediction.position, "likeliest": likeliest}


def _scans(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return how many calls have a scan that is kept, and their bytes."""
    names = {Path(call.file).name for call in manifest.calls}
    try:
        kept = [file.stat().st_size for file in (folder / SCANS).iterdir() if file.name in names]
    except OSError:
        kept = []
    return {"calls": len(kept), "bytes": sum(kept)}


def token_facts(recording: Recording, positions: range) -> list[dict[str, Any]]:
    """Return some tokens with their positions, ids and labels, and whether the model wrote them.

    Raises:
        InputError: a position beyond the text.
    """
    check_index("position", positions.stop - 1, len(recording))
    start = len(recording) if recording.written_from is None else recording.written_from
    return [
        {"position": token.position, "id": token.id, "label": token.label, "written": token.position >= start}
        for token in recording.tokens[positions.start : positions.stop]
    ]


def info_lines(facts: Mapping[str, Any], *, width: int = WIDTH) -> Iterator[Text]:
    """Yield the facts of a recording line by line; what was verified, and tokens, where they are among them.

    Args:
        facts: from `recording_facts`; "verified" and "listed" (from `token_facts`) beside them, or None.
        width: cells of a line.
    """
    title = f"{facts['model']['name']} · {_length(facts)}, {size(facts['bytes']['total'])}"
    yield from flowing(title, width, style="bold")
    yield from _facts(_named(facts), width)
    if facts["listed"] is not None:
        yield Text()
        yield from _tokens(facts["listed"], width)


def forecast_lines(bytes_needed: int, free: int, counted: str, *, width: int = WIDTH) -> Iterator[Text]:
    """Yield what is said before a recording is made.

    Args:
        bytes_needed: as forecast.
        free: bytes that are free where it will be.
        counted: its tokens, in words.
        width: cells of a line.
    """
    yield from _facts([("forecast", f"{size(bytes_needed)} for {counted}; {size(free)} free")], width)


def made_lines(facts: Mapping[str, Any], *, width: int = WIDTH) -> Iterator[Text]:
    """Yield what is said of a recording that was just written.

    Args:
        facts: from `recording_facts`.
        width: cells of a line.
    """
    calls = count(facts["checks"]["of"], "call")
    length = f"{size(facts['bytes']['total'])}, {_length(facts)}, {calls}"
    said = [("written", facts["path"]), ("", f"{length}, recorded in {facts['seconds']:.2f} s")]
    if facts["written_from"] is not None:
        said.append(("given", _given(facts["written_from"], facts["tokens"])))
    said.append(("self-checks", _checks(facts["checks"])))
    if facts["stored"] is not None:
        said.append(("rounding", _rounding(facts["stored"])))
    if facts["gaps"]:
        said.append(("gaps", gaps_in_words(Gap(**gap) for gap in facts["gaps"])))
    said.append(("see it", f"wherefrom explore {quote(facts['path'])}"))
    yield from _facts(said, width)


def _length(facts: Mapping[str, Any]) -> str:
    return f"{facts['tokens']:,} token{'s' * (facts['tokens'] != 1)}"


def _facts(named: Iterable[tuple[str, str]], width: int) -> Iterator[Text]:
    for label, value in named:
        first, *more = flowing(value, width, first=f"{label:<{NAME}}", indent=" " * NAME)
        first.stylize("dim", 0, NAME)
        yield from (first, *more)


def _named(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "path", facts["path"]
    yield "written by", f"wherefrom {facts['written_by']}"
    if facts["text"]["characters"]:
        yield "text", _quoted_excerpt(facts["text"])
    if facts["source_text"] is not None:
        text = f": {_quoted_excerpt(facts['source_text'])}" if facts["source_text"]["characters"] else ""
        yield "encoder read", f"{count(facts['source_tokens'], 'token')}{text}"
    yield "given", _given(facts["written_from"], facts["tokens"])
    yield "model", _model(facts["model"], max(facts["tokens"], facts["source_tokens"] or 0))
    for kind in facts["calls"]:
        cross = "cross-attention" if kind["kind"] == "cross" else "self-attention"
        yield "kept", f"{cross} of {part_named(kind['part'])}: {_kept(kind)}"
        yield "", f"{' and '.join(kind['formats'])}; mask: {'; or '.join(kind['masks'])}"
    yield from zip(chain(["not recorded"], repeat("")), _missing(facts["gaps"]), strict=False)
    yield "size", ", ".join(f"{part} {size(number)}" for part, number in facts["bytes"].items() if part != "total")
    yield "predictions", _said(facts["predictions"])
    kernels = dict.fromkeys(name for kind in facts["calls"] for name in kind["kernels"])
    yield "kernel", f"{', '.join(kernels) or 'none'}; the pass took {facts['seconds']:.2f} s"
    yield "self-checks", _checks(facts["checks"])
    if facts["stored"] is not None:
        yield "rounding", _rounding(facts["stored"])
    scans = facts["scans"]
    beside = f", {size(scans['bytes'])} beside the recording's own" if scans["calls"] else ""
    verified = facts["verified"]
    if verified is not None:
        found = f"{count(verified['files'], 'file')}, {count(verified['arrays'], 'array')}, {size(verified['bytes'])}"
        yield "verified", f"{found}: every byte is as it was written"
    yield "scans", f"kept of {scans['calls']} of {count(facts['checks']['of'], 'call')}{beside}"


def _checks(checks: Mapping[str, Any]) -> str:
    of = f"{checks['calls']} of {count(checks['of'], 'call')} checked"
    return of if checks["largest_error"] is None else f"{of}, largest error {checks['largest_error']:.0e}"


def _rounding(stored: Mapping[str, Any]) -> str:
    return (
        f"q, k and v to {stored['format']}: in the rows looked at, weights changed by at most "
        f"{stored['weight_error']:.1e}, and rows sum to one within {stored['sum_error']:.1e}"
    )


def _tokens(tokens: Sequence[Mapping[str, Any]], width: int) -> Iterator[Text]:
    """Yield some tokens, a line each."""
    at, id_ = (max([6, *(len(f"{token[name]}") for token in tokens)]) for name in ("position", "id"))
    marks = ["  written" if token["written"] else "" for token in tokens]
    most = max(6, min(TOKEN, width - at - id_ - 4 - max(map(len, marks), default=0)))
    labels = [fitted(quoted(printable(token["label"])), most, pad=False) for token in tokens]
    cells = max(map(cell_len, [*labels, "token"]))
    yield Text(f"{'at':>{at}}  {'token':<{cells}}  {'id':>{id_}}", "dim")
    for token, label, mark in zip(tokens, labels, marks, strict=True):
        yield Text(f"{token['position']:>{at}}  {fitted(label, cells)}  {token['id']:>{id_}}{mark}")


def _quoted_excerpt(text: Mapping[str, Any]) -> str:
    begins, ends = (quoted(readable(text[part])) for part in ("begins", "ends"))
    return f"{begins} ... {ends} ({text['characters']:,} characters)" if text["ends"] else begins


def _given(written_from: int | None, tokens: int) -> str:
    if written_from is None:
        return "all of the text"
    given = "position 0" if written_from == 1 else f"positions 0 to {written_from - 1}"
    one = written_from == tokens - 1
    written = f"{written_from} was" if one else f"{written_from} to {tokens - 1} were"
    return f"{given}; {written} written by the model, row t - 1 wrote token t"


def _model(model: Mapping[str, Any], tokens: int) -> str:
    beside = f"{model['encoder_layers']} + " if model["encoder_layers"] else ""
    shared = "" if model["kv_heads"] == model["heads"] else f" on {model['kv_heads']} of keys and values"
    context = f", context {model['context']:,}" if model["context"] else ""
    if 0 < model["context"] < tokens:
        context += " (the text is longer)"
    return (
        f"{model['kind']}, {beside}{count(model['layers'], 'layer')} of {count(model['heads'], 'head')}{shared}, "
        f"head size {model['head_size']}{context}; fingerprint {model['fingerprint'][:16]}"
    )


def _kept(kind: Mapping[str, Any]) -> str:
    said = [_some(kind[what], kind[f"of_{what}"], what[:-1]) for what in ("layers", "heads", "positions")]
    if kind["without_attention"]:
        number = len(kind["without_attention"])
        said[0] += f" ({number} {'has' if number == 1 else 'have'} no attention)"
    if kind["executions"] > len(kind["layers"]):
        said[0] += f" in {count(kind['executions'], 'execution')}"
    said.append("output projections" if kind["output"] else "no output projections")
    others = f" (in layer {kind['layers'][0]}; other layers {'have' if kind['whole'] else 'keep'} others)"
    return ", ".join(said) + ("" if kind["alike"] else others)


def _missing(gaps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is not recorded: a module whose attention was not seen a line, layers without any on one."""
    unseen = [gap for gap in gaps if gap["what"] != NO_ATTENTION]
    for gap in unseen[:GAPS]:
        layer = "" if gap["layer"] is None else f", layer {gap['layer']}"
        yield f"attention in {gap['name']}{layer}: {gap['what']}, {count(gap['calls'], 'call')}"
    if len(unseen) > GAPS:
        yield f"attention in {len(unseen) - GAPS} modules more"
    without = [Gap(**gap) for gap in gaps if gap["what"] == NO_ATTENTION]
    if without:
        yield gaps_in_words(without).removesuffix(".")


def _some(numbers: str | Sequence[int], of: int | None, what: str) -> str:
    """Return which of some numbers are kept, as ranges are typed: without their end."""
    if of is None:
        return f"{what}{'s' * (len(numbers) != 1)} {','.join(ranges([int(number) for number in numbers]))}"
    if numbers == "all" or len(numbers) == of:
        return f"all {of:,} {what}s" if of != 1 else f"its one {what}"
    pieces = ranges([int(number) for number in numbers])
    more = f" and {len(pieces) - RANGES} ranges more" if len(pieces) > RANGES else ""
    return f"{what}{'s' * (len(numbers) != 1)} {','.join(pieces[:RANGES])}{more} of {of:,}"


def ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as "0:3", "5": a range's end is not in it."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    return [str(start) if end == start + 1 else f"{start}:{end}" for start, end in runs]


def _said(predictions: Mapping[str, Any]) -> str:
    last = predictions["last"]
    if last is None:
        return "none kept"
    likeliest = ", ".join(map(_likely, last["likeliest"]))
    return f"{predictions['kept']:,} kept; the last, at position {last['position']}: {likeliest}"


def _likely(one: Mapping[str, Any]) -> str:
    name = f"id {one['id']}" if one["label"] is None else quoted(one["label"])
    value = one["log_probability"]
    return f"{name} {percent(0.0 if value is None else math.exp(value))}"
