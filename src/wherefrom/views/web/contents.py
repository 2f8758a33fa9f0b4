"""What there is in a recording, as the page is told of it (floor 6): its texts, tokens, layers, calls and gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.passages import passages
from wherefrom.questions.maps import HeadMap
from wherefrom.readable import readable
from wherefrom.recording import Call, Recording, is_numbered
from wherefrom.spans import Tokens
from wherefrom.views.cells import own_texts
from wherefrom.views.web.finding import is_blank, places
from wherefrom.views.web.wire import Message

MOST_TOKENS, MOST_PLACES, MOST_LIKELY = 4096, 1000, 5


def about(key: str, recording: Recording) -> Message:
    """Return what there is in a recording: its model, texts, layers, calls and gaps."""
    texts = texts_of(recording)
    calls = [_call_facts(index, call, recording, texts) for index, call in enumerate(recording.calls)]
    stored = next((call.stored.format for call in recording.calls if call.stored is not None), None)
    checked = sum(bool(call.checks) for call in recording.calls)
    facts = {
        "key": key,
        "model": {**vars(recording.model)},
        "texts": [{"tokens": len(text), "numbered": is_numbered(text)} for text in texts],
        "calls": calls,
        "layers": list(_layers(recording)),
        "gaps": [f"{gap.name}: {gap.what}" for gap in recording.gaps],
        "written_from": recording.written_from,
        "seconds": round(recording.seconds, 3),
        "predictions": len(recording.predictions),
        "checks": f"{checked} of {len(calls)} calls",
        "stored": stored,
        "default": suggested(recording),
    }
    return Message(facts)


def texts_of(recording: Recording) -> list[Tokens]:
    """Return the texts that calls go over: the recording's own, an encoder's, and numbered positions of others."""
    found = [recording.tokens, *([] if recording.source is None else [recording.source])]
    for call in recording.calls:
        for text in recording.texts_of(call):
            if is_numbered(text) and not any(is_numbered(own) and len(own) == len(text) for own in found):
                found.append(text)
    return found


def _text_number(texts: Sequence[Tokens], text: Tokens) -> int:
    for number, own in enumerate(texts):
        if own is text or (is_numbered(own) and is_numbered(text) and len(own) == len(text)):
            return number
    raise AssertionError("every call goes over one of the texts")


def _call_facts(index: int, call: Call, recording: Recording, texts: Sequence[Tokens]) -> dict[str, Any]:
    return {
        "index": index,
        "layer": call.layer,
        "name": readable(call.name),
        "kind": call.kind,
        "part": call.part,
        "repeat": call.repeat,
        "heads": list(call.head_numbers),
        "all_heads": call.all_heads,
        "destinations": call.destinations,
        "sources": call.sources,
        "of": [_text_number(texts, text) for text in recording.texts_of(call)],
        "all_rows": call.all_rows,
        "rows": len(call.rows),
        "mask": call.mask.describe(),
        "window": call.mask.window,
        "softcap": call.softcap,
        "sinks": "sinks" in call.shapes,
        "bias": "bias" in call.shapes,
        "output": "output" in call.shapes,
        "kernel": call.kernel,
        "levels": HeadMap(call, call.head_numbers[0]).levels,
        "checked": bool(call.checks),
    }


def _layers(recording: Recording) -> Any:
    """Yield every layer of every part with its calls, or why it has none."""
    parts = list(dict.fromkeys(call.part for call in recording.calls)) or [recording.model.part]
    for part in parts:
        gaps = recording.gaps_of(part)
        for layer in range(recording.layers_of(part)):
            own = [index for index, call in enumerate(recording.calls) if (call.part, call.layer) == (part, layer)]
            gap = None if layer not in gaps else f"{gaps[layer].what} in {gaps[layer].name}"
            yield {"part": part, "layer": layer, "call": own, "gap": gap if own or gap else "not recorded"}


def suggested(recording: Recording) -> dict[str, int]:
    """Return what is shown first: the last position, in a middle layer, whose heads mostly do more than rest."""
    alike = recording.calls_of() or list(recording.calls)
    if not alike:
        return {"call": 0, "destination": 0}
    call = alike[len(alike) // 2]
    index = next(index for index, own in enumerate(recording.calls) if own is call)
    return {"call": index, "destination": int(call.rows[-1])}


def tokens(recording: Recording, text: int, start: int, count: int) -> Message:
    """Return some tokens of a text, and what was predicted at them.

    Raises:
        InputError: no such text or position.
    """
    texts = texts_of(recording)
    chosen = texts[check_index("text", text, len(texts))]
    first = check_index("position", start, len(chosen) + 1)
    some = chosen[first : min(first + min(count, MOST_TOKENS), len(chosen))]
    facts = {
        "start": first,
        "tokens": [[token.label, own] for token, own in zip(some, own_texts(chosen, first), strict=False)],
        "predicted": list(_predicted(recording, first, first + len(some))) if text == 0 else [],
    }
    return Message(facts, {"ids": np.array([token.id for token in some], np.int32)})


def _predicted(recording: Recording, start: int, stop: int) -> Any:
    """Yield the kept predictions of some positions: the likeliest tokens, and how likely the one that came was."""
    for own in recording.predictions:
        if start <= own.position < stop:
            labels = own.labels or tuple(f"id {number}" for number in own.ids)
            likely = zip(labels[:MOST_LIKELY], own.log_probabilities[:MOST_LIKELY], strict=True)
            came = None if own.next_log_probability is None else math.exp(own.next_log_probability)
            yield [own.position, [[label, math.exp(log_p)] for label, log_p in likely], came]


def find(recording: Recording, text: int, query: str) -> Message:
    """Return where a text stands in another, as ranges of tokens; small and capital letters are the same.

    Raises:
        InputError: nothing to look for, or a text without words.
    """
    texts = texts_of(recording)
    chosen = texts[check_index("text", text, len(texts))]
    if is_blank(query):
        way_out = "Type a word."
        raise InputError("what is looked for", expected="some text", given="nothing", way_out=way_out)
    found, more = places(chosen.text, [token.span for token in chosen], query, MOST_PLACES)
    return Message({"places": found, "more": more})


def units(recording: Recording, text: int, by: str) -> Message:
    """Return which word, sentence, line or paragraph each token is in.

    Raises:
        InputError: no such text or unit.
    """
    texts = texts_of(recording)
    chosen = texts[check_index("text", text, len(texts))]
    owners = np.full(len(chosen), -1, np.int32)
    for number, passage in enumerate(passages(chosen, by)):
        owners[passage.start : passage.stop] = number
    return Message({}, {"owners": owners})
