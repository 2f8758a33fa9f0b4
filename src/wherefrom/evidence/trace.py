"""The main job (floor 5): where did this token come from? Every source's weight beside its measured knock-out.

It records one pass, asks the recording for a position's weights, measures every source's knock-out, and then,
for the strongest sources, every head alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from wherefrom.capture.native import forecast, record, refuse_written
from wherefrom.capture.verbs import counter, inputs_of, is_module
from wherefrom.checks import check_index, whole
from wherefrom.errors import InputError
from wherefrom.evidence.carried_sources import carried_sources_of, worth_a_look
from wherefrom.evidence.knockout import HeadKnockouts, Knockouts, knock_out, knock_out_heads
from wherefrom.evidence.target import Target, Vocabulary, find_target
from wherefrom.evidence.traced import Aim, Cost, Trace
from wherefrom.evidence.versions import Destination, Position
from wherefrom.model.language import LanguageModel, read_prompt, require_model, start_tokens
from wherefrom.questions import Scope
from wherefrom.questions.asked import mean_row
from wherefrom.recording import ModelFacts, Prediction, Recording
from wherefrom.tokens import Tokens

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""

MUCH = 2**30
"""Bytes of a recording beyond which only the traced position is kept as a destination, which its weights and knock-outs
need no more than: the default model's keys and values are 46 of its 116 kB a token."""


def trace(
    model: Any,
    text: Any,
    *,
    tokenizer: Any = None,
    written: str | None = None,
    through: Literal["self", "cross"] | None = None,
    target: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    carried_sources: int = 2,
    carriers: int = 4,
    progress: Progress | None = None,
) -> Trace:
    """Return where a prediction of the model came from: every source's weight and measured knock-out, and the heads.

    Of a long text (a recording beyond a gigabyte) only the traced position is kept as a destination in
    `Trace.recording`, with every source.

    A decoder predicts the token after a position, an encoder the token at a masked one. A decoder with an encoder
    predicts the token after those it has written, and its sources are the words that the encoder read.

    Args:
        model: from `wherefrom.load`, or any model of transformers.
        text: the prompt; with an encoder beside the decoder, the text that the encoder reads. Also chat messages,
            written out by the model's template; for a model of transformers, a mapping of its inputs.
        tokenizer: of a model of transformers.
        written: what such a decoder has written so far; only its start mark unless given.
        through: "cross" for the encoder's text or "self" for what was written, with such a decoder; cross unless given.
        target: the token to ask about, as text or id; the model's own choice unless given.
        against: a second token: the target is then the first one's lead over it, log p - log p'.
        position: the position whose prediction is traced; the last unless given, in an encoder the masked one. What
            comes after it cannot matter in a causal model and is not read.
        layer: look at and cut in this layer only.
        head: look at and cut in this head of each layer only.
        carried_sources: for how many sources, by the size of their knock-out, each head is cut alone; 0 for none.
        carriers: how many heads are listed for each.
        progress: told about long work.

    Raises:
        InputError: an empty, blank, one-token or too long prompt; a target that is not one token; a position, layer
            or head out of range; a number of sources or heads below 0; an encoder's text with no masked token, or
            several, and no position.
        RecordingError: a kernel failed the self-check.
    """
    carried_sources = whole("carried_sources", carried_sources, least=0, way_out="0 leaves them out.")
    carriers = whole("carriers", carriers, least=0, way_out="0 leaves them out.")
    tell = progress or (lambda what, done, total: None)
    read = _read_own if isinstance(model, LanguageModel) or not is_module(model) else _read_other
    reading = read(model, text, tokenizer, written, position, tell)
    recording, at, vocabulary = reading.recording, reading.at, reading.vocabulary
    scope = _scope(recording.model, through, layer, head)
    destination, prediction = reading.destination, recording.prediction(reading.at)
    logits = destination.logits()
    target_found = find_target(vocabulary, logits, prediction.ids[0] if target is None else target, against)
    measured = knock_out(
        destination,
        target_found,
        scope=scope,
        progress=lambda done, total: tell("cutting each source", done, total),
    )
    heads = knock_out_heads(
        destination,
        target_found,
        worth_a_look(measured, carried_sources),
        scope=scope,
        progress=lambda done, total: tell("cutting each head alone", done, total),
    )
    return Trace(
        recording=recording,
        aim=_aim(vocabulary, target_found, prediction, float(replace(target_found, against=None).of_logits(logits))),
        predicted=_predicted(vocabulary, prediction),
        actual_next=reading.actual_next,
        scope=scope,
        weights=mean_row(recording, at, scope),
        knockouts=measured,
        carried=carried_sources_of(recording, measured, heads, carriers),
        cost=_cost(recording, measured, heads),
    )


@dataclass(frozen=True)
class _Reading:
    """A pass that was recorded for a trace, and the position that is asked about."""

    recording: Recording
    actual_next: int | None
    at: int
    destination: Position
    vocabulary: Vocabulary


def _read_own(
    model: LanguageModel, text: Any, tokenizer: Any, written: str | None, position: int | None, tell: Progress
) -> _Reading:
    """Return the recorded pass of a model of `wherefrom.load`."""
    require_model(model)
    if tokenizer is not None:
        way_out = "A model of wherefrom.load has its own."
        raise InputError("the tokenizer", expected="none for this model", given="one", way_out=way_out)
    beside = model.config.kind == "encoder-decoder"
    if not beside:
        refuse_written(model, written)
    tokens = start_tokens(model, written) if beside else read_prompt(model, text)
    actual_next = None
    if model.config.kind == "encoder":
        at = _masked(model, tokens, position)
    else:
        tokens, actual_next = _up_to(tokens, position, alone=not beside)
        at = len(tokens) - 1
    source = read_prompt(model, text) if beside else None
    size = forecast(model, len(tokens)) if source is None else forecast(model, len(source), len(tokens))
    reading = f"reading {len(tokens)} tokens ({size / 1e6:.1f} MB)"
    recording = record(
        model,
        tokens if source is None else source,
        written=None if source is None else tokens,
        predictions="last" if model.config.causal else (at,),
        positions=(at,) if size > MUCH else None,
        progress=lambda done, total: tell(reading, done, total),
    )
    return _Reading(recording, actual_next, at, Destination(model, recording, at), model.tokenizer)


def _read_other(
    model: Any, text: Any, tokenizer: Any, written: str | None, position: int | None, tell: Progress
) -> _Reading:
    """Return the recorded pass of a model of transformers."""
    from wherefrom.evidence import huggingface as other

    asked, known = inputs_of(model, tokenizer, text, written, {})
    on_call = counter(asked, lambda done, total: tell("reading the text", done, total))
    recording, inputs, came, at = other.read(asked, known.inputs, known.text, position, on_call)
    destination = other.TransformersDestination(asked, recording, at, inputs=inputs)
    return _Reading(recording, came, at, destination, other.Vocabulary(asked.tokenizer))


def _masked(model: LanguageModel, tokens: Tokens, position: int | None) -> int:
    """Return the position to ask an encoder about: the one given, or the one that is masked."""
    model.transformer.vocabulary_head  # noqa: B018, refuses an encoder that cannot predict
    if len(tokens) < 2:
        _up_to(tokens, position, alone=True)
    if position is not None:
        return check_index("position", position, len(tokens))
    masked = [token.position for token in tokens if token.id == model.tokenizer.mask_id]
    if len(masked) == 1:
        return masked[0]
    mark = "[MASK]" if model.tokenizer.mask_id is None else model.tokenizer.label(model.tokenizer.mask_id)
    raise InputError(
        "the text of an encoder",
        expected=f"one masked token, {mark}",
        given="none" if not masked else f"{len(masked)}, at positions {', '.join(map(str, masked))}",
        way_out=f"Write {mark} for the token to ask about, or give its position (--position).",
        positions=tuple(masked),
    )


def _up_to(tokens: Tokens, position: int | None, *, alone: bool) -> tuple[Tokens, int | None]:
    """Return the tokens up to a position, and the id of the token after it if there is one.

    A decoder that is alone must have something to read before the position.
    """
    last = len(tokens) - 1 if position is None else check_index("position", position, len(tokens))
    if last == 0 and alone:
        raise InputError(
            "the prompt" if len(tokens) == 1 else "the position",
            expected="at least one token before the position that predicts",
            given=f'only "{tokens[0].label}"' if len(tokens) == 1 else "position 0",
            way_out="The first position reads only itself, so there is nothing to cut: "
            + ("give a longer prompt." if len(tokens) == 1 else "ask about a later position."),
        )
    if last == len(tokens) - 1:
        return tokens, None
    return Tokens(tokens.text[: tokens[last].span[1]], tokens.items[: last + 1]), tokens.ids[last + 1]


def _scope(model: ModelFacts, through: str | None, layer: int | None, head: int | None) -> Scope:
    """Return what is looked at: cross-attention where there is some, unless something else is asked."""
    beside = model.kind == "encoder-decoder"
    if through == "cross" and not beside:
        raise InputError(
            "through",
            expected='"self"',
            given=f'"cross", for {model.name}, which is no encoder-decoder and has no cross-attention',
            way_out="Leave it out.",
        )
    return Scope(
        None if layer is None else (check_index("layer", layer, model.layers),),
        None if head is None else (check_index("head", head, model.heads),),
        through or ("cross" if beside else "self"),
    )


def _aim(vocabulary: Vocabulary, target: Target, prediction: Prediction, log_probability: float) -> Aim:
    """Return the target; a token that is listed as predicted has the probability that it has there, to the last bit."""
    label, listed = vocabulary.label, dict(zip(prediction.ids, prediction.log_probabilities, strict=True))
    against = None if target.against is None else label(target.against)
    return Aim(target, label(target.id), against, math.exp(listed.get(target.id, log_probability)))


def _predicted(vocabulary: Vocabulary, prediction: Prediction) -> tuple[tuple[str, float], ...]:
    pairs = zip(prediction.ids, prediction.log_probabilities, strict=True)
    return tuple((vocabulary.label(token), math.exp(log_p)) for token, log_p in pairs)


def _cost(recording: Recording, measured: Knockouts, heads: HeadKnockouts) -> Cost:
    return Cost(
        record_seconds=recording.seconds,
        knockout_seconds=measured.seconds,
        head_seconds=heads.seconds,
        knockout_rows=measured.rows,
        head_rows=heads.rows,
        recording_bytes=recording.bytes,
    )
