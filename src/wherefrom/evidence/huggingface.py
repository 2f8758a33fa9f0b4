"""A position of a transformers model in many versions (floor 5): run again once for each cut, through the same door.

What `wherefrom.evidence.versions` is to the project's own models, for any model of transformers. Cuts are made where
the model hands its attention over, never in a copy of its code. There are two ways, and `TransformersDestination.way`
says which one a model permits:

"recorded keys": the position alone is run, many versions in one batch, and reads the recorded keys and values of the
others, as the project's own models do. It is taken where the model, run so without a cut, gives what the whole input
gives.

"full reruns": the whole input is run again for each cut; everywhere but at the position attention gives what it gave
without the cut. It is right for any model whose tokens exchange information by attention that is seen.

Every cut is proven: with the log-sum-exp of the row before and after it, exp(before) must be exp(after) plus the exps
of the removed scores; a removed edge then has weight 0, and every other one grew by what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.capture.fused import Limits, attend, merge
from wherefrom.capture.huggingface.everywhere import watched_everywhere
from wherefrom.capture.huggingface.model import TransformersModel, as_transformers_model
from wherefrom.capture.huggingface.recorded import Wanted, alone, record_pass
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.huggingface.sites import as_written
from wherefrom.capture.huggingface.texts import label_of
from wherefrom.checks import check_index
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.running import drawing_nothing
from wherefrom.evidence.target import Target
from wherefrom.evidence.versions import ALONE, Plan, Position, Uncut, another_model, require_whole, row_of, tensor
from wherefrom.readable import readable
from wherefrom.recording import Call, Recording, check_recording

CLOSE = 1e-3
"""Nats by which a position run alone may differ from the whole input's: float32 rounding, far below a real fault."""
PROVEN = 1e-2
"""How far, relatively, the sums of a proof may be apart: float32 scores of long rows."""
TOKENS_AT_ONCE = 4096
"""Tokens of full reruns that are run side by side."""
SINGLE = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "decoder_attention_mask", "use_cache")
"""Inputs that have a row for each text and can be repeated; with any other, texts are run one by one."""


class TransformersDestination(Position):
    """A position of a recording of a transformers model, ready to be run again in many versions.

    Args:
        model: that made the recording.
        recording: of one text, with every layer and head.
        position: the one that reads; the last of the text unless given.
        inputs: what the model was called with, where that was more than the tokens (an image, a mask).

    Attributes:
        way: how versions are run, see the top of the module.

    Raises:
        InputError: another model made the recording, it does not hold every layer and head, or the position is out of
            range; attention that is not recorded where all of it matters.
    """

    chosen = True

    def __init__(
        self,
        model: Any,
        recording: Recording,
        position: int | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        recording, model = check_recording(recording), as_transformers_model(model)
        if model.fingerprint != recording.model.fingerprint:
            known = {name for name, _ in as_written(model.module).named_modules()}
            raise another_model(recording, model.name, model.fingerprint, known, "wherefrom")
        require_whole(recording)
        _require_seen(recording)
        self.model, self.recording = model, recording
        last = recording.last_position() if position is None else position
        self.position = check_index("position", last, len(recording))
        self._calls = {(call.name, call.repeat): call for call in recording.calls}
        self._inputs = _inputs(model, recording, inputs)
        self._logits: Tensor | None = None
        self._proven: set[str] = set()
        self.way = ALONE if self._runs_alone() else "full reruns"

    @property
    def format(self) -> str:
        """The number format that the model computes in."""
        first = next(self.model.module.parameters(), torch.empty(0))
        return str(first.dtype).removeprefix("torch.")

    @property
    def vocabulary(self) -> int:
        """How many tokens the model chooses among."""
        return int(self.logits().shape[-1])

    def sources(self, kind: str = "self") -> int:
        """Return how many sources the calls of a kind have.

        Raises:
            InputError: there are no calls of the kind.
        """
        return self._first(kind).sources

    def readable(self, kind: str = "self") -> frozenset[int]:
        """Return the sources that the position may read in some layer.

        Raises:
            InputError: there are no calls of the kind.
        """
        self._first(kind)
        found: set[int] = set()
        for call in self.recording.calls_of(kind):
            found |= set(np.flatnonzero(row_of(call, self.position)).tolist())
        return frozenset(found)

    def logits(self) -> Tensor:
        """Return the logits [N] of the position, nothing cut, by one run of the whole input.

        Raises:
            InputError: a model in training mode that draws random numbers: no two runs of it are the same.
        """
        if self._logits is None:
            # watched like the recorded pass and every cut: another attention implementation rounds otherwise
            watched = watched_everywhere(self.model.module, lambda one: one.attend().output)
            with drawing_nothing(self.model), torch.no_grad(), watched:
                outputs = self.model.module(**self._inputs)
            self._logits = self._at(outputs)[0]
        return self._logits

    def values(self, target: Target, plan: Plan) -> NDArray[np.float64]:
        """Return the target in nats, [1 + rows]: nothing cut, then each version.

        Raises:
            InputError: the model has no such token.
            RecordingError: a cut that took no effect.
        """
        with torch.no_grad():
            run = self._alone if self.way == ALONE else self._again
            found = [target.of_logits(logits) for logits in run(plan)]
        return torch.cat(found).numpy()

    def _first(self, kind: str) -> Call:
        calls = self.recording.calls_of(kind)
        return calls[0] if calls else self.recording.call(0, kind)

    def _at(self, outputs: Any) -> Tensor:
        """Return the logits [R, N] at the position."""
        logits = getattr(outputs, "logits", None)
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise InputError(
                "the model",
                expected="one that predicts tokens",
                given=f"{type(self.model.module).__name__}, which gives no logits at each position",
                way_out="Load it with its language-model head, such as AutoModelForCausalLM.",
            )
        return logits[:, self.position - len(self.recording)].detach().float().cpu()

    # -- the position alone

    def _runs_alone(self) -> bool:
        """Whether the position alone, over the recorded keys, gives what the whole input gives."""
        kind = self.recording.model.kind
        if kind == "encoder-decoder" or self.rounded is not None or set(self._inputs) - set(SINGLE):
            return False
        if any(one.part != self.recording.model.part or one.repeat for one in self.recording.calls):
            return False
        try:
            with torch.no_grad():
                (found,) = self._alone(Uncut())
        except Exception:  # whatever a model makes of a single token: then the other way is taken
            return False
        there = torch.log_softmax(self.logits(), dim=-1)
        here = torch.log_softmax(found[0], dim=-1)
        likely = there > there.max() - 10
        return bool(torch.isfinite(here).all()) and bool(((here - there).abs()[likely] < CLOSE).all())

    def _alone(self, plan: Plan) -> Iterator[Tensor]:
        """Yield the logits [1 + rows, N] of all versions, run side by side."""
        rows = 1 + plan.rows
        token, device = self.recording.tokens.ids[self.position], self.model.device
        ids = torch.full((rows, 1), token, device=device)
        places = torch.full((rows, 1), self.position, device=device)
        given: dict[str, Any] = {"input_ids": ids, "position_ids": places, "use_cache": False}
        if self.recording.model.kind == "encoder":
            given.pop("use_cache")
        if "token_type_ids" in self._inputs:
            given["token_type_ids"] = self._inputs["token_type_ids"][:, [self.position]].expand(rows, 1)
        seen: set[str] = set()

        def attention(one: Given) -> Tensor:
            seen.add(one.name)
            return self._read_alone(one, plan)

        with watched_everywhere(self.model.module, attention):
            outputs = self.model.module(**given)
        missing = {call.name for call in self.recording.calls} - seen
        if missing or seen - {call.name for call in self.recording.calls}:
            raise RecordingError(
                "the position run alone",
                expected="the modules that were recorded",
                given=f"others ({', '.join(sorted(missing)[:3])} did not run)",
                way_out="It is run within the whole input instead.",
            )
        yield outputs.logits[:, -1].detach().float().cpu()

    def _read_alone(self, one: Given, plan: Plan) -> Tensor:
        """Return outputs [R, H, 1, V] of the position's versions over the recorded keys of others and their own."""
        call, at = self._calls[one.name, 0], self.position
        q, k, v = (x.float().cpu().transpose(0, 2) for x in (one.q, one.k, one.v))  # 1 H|K R D
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))  # 1 H R D
        permitted = torch.from_numpy(row_of(call, at, per_head=True))[:, None]  # H|1 1 S
        bias = None if call.bias is None else tensor(call.bias[:, [call.place_of_row(at)]])[None]  # 1 H|1 1 S
        own = _scores(one, (q * k).sum(dim=-1), None if bias is None else bias[..., at])  # 1 H R
        own = own.masked_fill(~permitted[None, ..., at], -torch.inf)
        others = permitted.clone()
        others[..., at] = False
        columns = torch.nonzero(others.flatten(0, 1).any(dim=0))[:, 0]
        others = others[..., columns].expand(-1, q.shape[2], -1)  # H|1 R S'
        bias = None if bias is None else bias[..., columns]
        cut, removed, kept_own = plan.removed(call.layer, call.kind), None, own
        if cut is not None:
            removed = torch.zeros(len(cut[1]), q.shape[2], cut[1].shape[2], dtype=torch.bool)
            removed[:, cut[0]] = cut[1]
            removed = removed[: q.shape[1]]  # H|1 R S
            kept_own = own.masked_fill(removed[None, ..., at], -torch.inf)
        output, lse = v, kept_own
        if len(columns):
            left = others if removed is None else others & ~removed[..., columns]
            keys, values = (tensor(x[:, columns.numpy()])[None] for x in (call.k, call.v))
            limits = Limits.of_permitted(left, q, added=bias)
            past = attend(q, keys, values, limits=limits, scale=one.scale, softcap=one.softcap)
            output, lse = merge((past.output, past.lse), (v, kept_own))
            if removed is not None and one.name not in self._proven:
                keys = keys.repeat_interleave(q.shape[1] // keys.shape[1], dim=1)
                scores = _scores(one, q @ keys.transpose(-1, -2), bias).masked_fill(~others, -torch.inf)
                every = torch.cat((scores, own[..., None]), dim=-1)  # 1 H R S'+1
                gone = torch.cat((removed[..., columns], removed[..., [at]]), dim=-1)
                self._prove(one.name, every, gone, lse)
        if one.sinks is not None:
            whole = torch.logaddexp(lse, one.sinks.float().cpu()[None, :, None])
            output = output * torch.exp(lse - whole).unsqueeze(-1)
        return output.transpose(0, 2).to(one.q)  # R H 1 V

    def _prove(self, name: str, scores: Tensor, removed: Tensor, lse: Tensor) -> None:
        """Prove the cuts of a call, once: what the sums lost is what was removed.

        Args:
            name: the module.
            scores: [..., H, R, S], those of every edge that the mask permits, -inf elsewhere.
            removed: bool, broadcastable to them.
            lse: [..., H, R], of the rows with the cut.

        Raises:
            RecordingError: it is not.
        """
        before = torch.logsumexp(scores, dim=-1)
        gone = torch.logsumexp(scores.masked_fill(~removed, -torch.inf), dim=-1)
        after = torch.logaddexp(lse.to(scores), gone)
        both = torch.isfinite(before) & torch.isfinite(after)
        same = torch.isfinite(before) == torch.isfinite(after)
        largest = float((before - after)[both].abs().max()) if bool(both.any()) else 0.0
        if not bool(same.all()) or not largest < PROVEN:
            raise RecordingError(
                f"the proof of a cut in {name}",
                expected=f"log-sum-exps with and without it that agree within {PROVEN}",
                given=f"a difference of {largest:.3g}",
                way_out="Nothing was measured; report the model.",
                name=name,
            )
        self._proven.add(name)

    # -- the whole input

    def _again(self, plan: Plan) -> Iterator[Tensor]:
        """Yield the logits of row 0 and of all versions, some at a time."""
        yield self.logits()[None]
        length = max(x.shape[1] for x in self._inputs.values() if isinstance(x, Tensor) and x.ndim >= 2)
        at_once = max(1, TOKENS_AT_ONCE // length - 1) if not set(self._inputs) - set(SINGLE) else 1
        for start in range(1, 1 + plan.rows, at_once):
            rows = range(start, min(start + at_once, 1 + plan.rows))
            took: set[str] = set()

            def attention(one: Given, rows: range = rows, took: set[str] = took) -> Tensor:
                return self._cut_again(one, plan, rows, took)

            if at_once == 1 and set(self._inputs) - set(SINGLE):
                yield self._one_again(plan, start)
                continue
            given = {name: _repeated(value, 1 + len(rows)) for name, value in self._inputs.items()}
            with watched_everywhere(self.model.module, attention):
                outputs = self.model.module(**given)
            self._require_taken(took)
            yield self._at(outputs)[1:]

    def _one_again(self, plan: Plan, row: int) -> Tensor:
        """Return the logits [1, N] of one version, run alone: of inputs that cannot be repeated."""
        if self.recording.model.kind == "encoder":
            raise InputError(
                "the inputs",
                expected=f"none beside {', '.join(SINGLE)} for a knock-out in an encoder",
                given=", ".join(sorted(set(self._inputs) - set(SINGLE))),
                way_out="Record the text alone.",
            )
        took: set[str] = set()

        def attention(one: Given) -> Tensor:
            return self._cut_again(one, plan, range(row, row + 1), took, first=0)

        with watched_everywhere(self.model.module, attention):
            outputs = self.model.module(**self._inputs)
        self._require_taken(took)
        return self._at(outputs)

    def _cut_again(self, one: Given, plan: Plan, rows: range, took: set[str], first: int = 1) -> Tensor:
        """Return outputs [B, H, T, V] of a call whose texts from `first` on are versions; text 0 is the uncut one."""
        attended = one.attend()
        output = attended.output
        call = self._calls.get((one.name, one.turn))
        if call is None or call.part != self.recording.model.part:
            return output
        if first and call.kind == "self" and self.recording.model.kind == "encoder":
            held = output[:1].expand(len(output), -1, -1, -1).clone()
            held[:, :, self.position] = output[:, :, self.position]
            output = held
        cut = plan.removed(call.layer, call.kind)
        if cut is None:
            return output
        inside = [
            (first + place, row - cut[0].start)
            for place, row in enumerate(rows)
            if row in range(*cut[0].indices(1 + plan.rows))
        ]
        if inside:
            texts, places = ([pair[side] for pair in inside] for side in (0, 1))
            output = output.clone()
            output[texts, :, self.position] = self._row_without(one, texts, cut[1][:, places]).to(output)
            took.add(one.name)
        return output

    def _row_without(self, one: Given, texts: list[int], removed: Tensor) -> Tensor:
        """Return the position's outputs [R, H, V] in some texts, each without its sources, bool [H or 1, R, S]."""
        at, readable = self.position, one.readable
        q, k, v = (x[texts] if len(x) > 1 else x.expand(len(texts), -1, -1, -1) for x in (one.q, one.k, one.v))
        q = q[:, :, at : at + 1]  # R H 1 D
        gone = removed[: q.shape[1]].transpose(0, 1)[:, :, None].to(q.device)  # R H|1 1 S
        masks = [readable.masks[text if len(readable.masks) > 1 else 0] for text in texts]
        allowed = np.stack([mask.permitted([at], range(k.shape[2])).reshape(-1, 1, k.shape[2]) for mask in masks])
        permitted = torch.from_numpy(allowed).to(q.device)  # R H|1 1 S
        bias = readable.bias
        if bias is not None:
            bias = bias[texts] if len(bias) > 1 else bias
            bias = bias[:, :, [at if bias.shape[2] > 1 else 0]]  # R|1 H|1 1 S
        limits = Limits.of_permitted(permitted & ~gone, q, added=bias)
        left = attend(q, k, v, limits=limits, scale=one.scale, softcap=one.softcap, sinks=one.sinks)
        if one.name not in self._proven:
            keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
            scores = _scores(one, (q @ keys.transpose(-1, -2)).float(), bias).masked_fill(~permitted, -torch.inf)
            if one.sinks is not None:  # a source more, which moves nothing
                scores = torch.cat((scores, one.sinks.float()[None, :, None, None].expand(len(q), -1, 1, 1)), dim=-1)
                gone = torch.nn.functional.pad(gone, (0, 1))
            self._prove(one.name, scores, gone, left.lse)
        return left.output[:, :, 0]

    def _require_taken(self, took: set[str]) -> None:
        if not took:
            raise RecordingError(
                "a knock-out",
                expected="the cut to be made where the model computes its attention",
                given="no call that it is in",
                way_out="The model takes another path than when it was recorded; record it again.",
            )


def _scores(one: Given, products: Tensor, bias: Tensor | None) -> Tensor:
    """Return the scores of products q . k, with the call's own scale, softcap and bias."""
    scores = one.scale * products
    if one.softcap is not None:
        scores = one.softcap * torch.tanh(scores / one.softcap)
    return scores if bias is None else scores + bias


def _inputs(model: TransformersModel, recording: Recording, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the model is called with: what it was recorded with, or the recording's own tokens."""
    more = {"use_cache": False} if model.accepts("use_cache") else {}
    if given is not None:
        left_out = ("use_cache", "logits_to_keep", "labels")
        return {name: value for name, value in given.items() if name not in left_out} | more
    ids = torch.tensor([recording.tokens.ids], device=model.device)
    if recording.source is None:
        return {"input_ids": ids, "attention_mask": _padding(recording, ids), **more}
    source = torch.tensor([recording.source.ids], device=model.device)
    mask = _padding(recording, source, "encoder")
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": ids, **more}


def _padding(recording: Recording, ids: Tensor, part: str | None = None) -> Tensor:
    """Return which of a part's tokens [1, T] are of its text: 1, else 0."""
    own = torch.from_numpy(recording.own_positions(part))
    return own.to(ids)[None] if own.numel() == ids.shape[1] else torch.ones_like(ids)


def _require_seen(recording: Recording) -> None:
    """Refuse an encoder of which some attention is not recorded: others would read there what a cut changed."""
    unseen = [gap for gap in recording.gaps if gap.calls]
    if recording.model.kind == "encoder" and unseen:
        raise InputError(
            "a knock-out in an encoder",
            expected="all of its attention recorded",
            given=f"{unseen[0].name}, which computes its own ({unseen[0].what})",
            way_out="Its weights can be asked about all the same.",
        )


def _repeated(value: Any, count: int) -> Any:
    return value.expand(count, *value.shape[1:]) if isinstance(value, Tensor) and len(value) == 1 else value


class Vocabulary:
    """A transformers tokenizer as `wherefrom.evidence.target.find_target` asks it: labels, and the token of a text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.label = tokenizer, label_of(tokenizer)

    def one_token(self, text: str) -> int:
        """Return the id of the one token that a text is read as.

        Raises:
            InputError: no tokenizer, or a text of several tokens, whose pieces are named.
        """
        if self._tokenizer is None:
            way_out = "Give its id, or the tokenizer: wherefrom.trace(model, text, tokenizer=tokenizer)."
            raise InputError(
                f'the token "{text}"', expected="an id, without a tokenizer", given="a text", way_out=way_out
            )
        ids: tuple[int, ...] = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        if len(ids) == 1 and ids[0] != unknown:
            return ids[0]
        pieces = tuple(self.label(number) for number in ids)
        named = ", ".join(f'"{piece}" = id {number}' for piece, number in zip(pieces, ids, strict=True))
        raise InputError(
            f'the token "{readable(text)}"',
            expected="exactly one token of this model",
            given=f"{len(ids)} ({named})" if ids else "an empty text",
            way_out="Ask for one of these pieces, by its id if it cannot be typed." if ids else "Name a token.",
            text=text,
            pieces=pieces,
            ids=ids,
        )


def read(
    model: TransformersModel,
    inputs: Mapping[str, Any],
    text: str | None,
    position: int | None,
    on_call: Callable[[int], None] | None = None,
) -> tuple[Recording, dict[str, Any], int | None, int]:
    """Return the recording of a pass up to a position, what it was given, the id that came next, and the position.

    Args:
        model: that reads.
        inputs: of one text.
        text: what the ids are the tokens of, where that is known.
        position: whose prediction is asked about; the last unless given, in an encoder the masked one.
        on_call: told the number of calls done.

    Raises:
        InputError: a position out of range, or nothing before it to read; an encoder's text with no masked token, or
            several, and no position.
        RecordingError: a self-check failed.
    """
    if model.headless:
        raise _headless(model)
    inputs = dict(inputs)
    name = "decoder_input_ids" if model.in_pairs else "input_ids"
    ids = inputs.get(name)
    can = getattr(model.module, "can_generate", None)
    writes = can is not None and bool(can())
    came: int | None = None
    if isinstance(ids, Tensor) and writes:
        real = _real(ids, inputs.get("decoder_attention_mask" if model.in_pairs else "attention_mask"))
        at = int(real.nonzero()[-1]) if position is None else check_index("position", position, ids.shape[1])
        if at == 0 and not model.in_pairs:
            raise InputError(
                "the prompt" if ids.shape[1] == 1 else "the position",
                expected="at least one token before the position that predicts",
                given="one token" if ids.shape[1] == 1 else "position 0",
                way_out="The first position reads only itself, so there is nothing to cut: give a longer prompt.",
            )
        if at < ids.shape[1] - 1:
            came = int(ids[0, at + 1]) if bool(real[at + 1]) else None
            text = None  # of the text before the position its tokens tell
            inputs = {key: _up_to(value, ids.shape, at) for key, value in inputs.items()}
    elif isinstance(ids, Tensor):
        at = _masked(model, ids[0].tolist()) if position is None else check_index("position", position, ids.shape[1])
    else:
        at = 0
    wanted = Wanted(predictions="last" if writes else (at,))
    recording = alone(record_pass(model, inputs, wanted, text=text, on_call=on_call))
    if not recording.predictions:
        raise _headless(model)
    if "decoder_input_ids" not in inputs and model.in_pairs:
        inputs["decoder_input_ids"] = torch.tensor([recording.tokens.ids], device=model.device)
    return recording, inputs, came, recording.predictions[-1].position


def _real(ids: Tensor, mask: Any) -> Tensor:
    """Return which tokens of one text [1, T] are its own, bool [T]; those that only fill up a batch are not."""
    if not isinstance(mask, Tensor) or mask.shape != ids.shape or not bool(mask.any()):
        return torch.ones(ids.shape[1], dtype=torch.bool)
    return mask[0].bool()


def _headless(model: TransformersModel) -> InputError:
    """Return how a model that predicts no tokens is refused."""
    why = "has no language-model head" if model.headless else "predicts none"
    kind = _with_head(model)
    return InputError(
        "the model",
        expected="one that predicts tokens",
        given=f"{type(model.module).__name__}, which {why}",
        way_out="Give a model with a language-model head, such as AutoModelForCausalLM loads."
        if kind is None
        else f"Load it with its language-model head: transformers.{kind}.from_pretrained(...).",
    )


def _with_head(model: TransformersModel) -> str | None:
    """Return the class of transformers that loads a model with its head, None where there is none."""
    import transformers

    pair, causal, masked = "AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForMaskedLM"
    reads_on = any(getattr(module, "is_causal", False) is True for module in model.module.modules())
    order = (pair,) if model.in_pairs else (causal, masked) if reads_on else (masked, causal)
    return next((kind for kind in order if type(model.config) in getattr(transformers, kind)._model_mapping), None)


def _up_to(value: Any, shape: Sequence[int], at: int) -> Any:
    """Return an input that has an entry a token up to a position, any other as it is."""
    of_tokens = isinstance(value, Tensor) and tuple(value.shape[:2]) == tuple(shape)
    return value[:, : at + 1] if of_tokens else value


def _masked(model: TransformersModel, ids: Sequence[int]) -> int:
    mask = getattr(model.tokenizer, "mask_token_id", None)
    found = [place for place, number in enumerate(ids) if mask is not None and number == mask]
    if len(found) == 1:
        return found[0]
    mark = getattr(model.tokenizer, "mask_token", None) or "[MASK]"
    raise InputError(
        "the text of an encoder",
        expected=f"one masked token, {mark}",
        given="none" if not found else f"{len(found)}, at positions {', '.join(map(str, found))}",
        way_out=f"Write {mark} for the token to ask about, or give its position (--position).",
        positions=tuple(found),
    )
