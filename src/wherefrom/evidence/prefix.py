"""A text's last rows run alone (floor 5): they read the recorded keys and values of what stands before them.

Where a change begins at some position of a decoder's text, everything before it is as it was. It is run once; then each
changed version costs its own rows only. Takes the passes from `running` beside it and gives them to ablations.

It is done only where every call is plain causal self-attention, and trusted only after the model, run so without a
change, has given the keys, values and predictions that the whole text gave: a model that ignores position ids, or whose
tokens exchange information by other ways than attention, is found out by that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from wherefrom.attention import Mask
from wherefrom.capture.huggingface.everywhere import watched_everywhere
from wherefrom.capture.huggingface.seen import Given
from wherefrom.evidence.direct import module_of
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.running import Executed, OwnRunner, Runner, TransformersRunner
from wherefrom.model.attention_function import Site
from wherefrom.model.transformer import Reading

CLOSE = 1e-3
"""By how much rows run alone may differ from the whole text's, in nats of what is predicted and as a share of the
largest key and value of a call: float32 rounding, far below a real fault."""


@dataclass(frozen=True)
class Piece:
    """One execution of attention by some rows of a text that are run alone.

    Attributes:
        layer: its layer.
        name: its module's path.
        q: [B, H, R, D], of the rows, positions rotated in.
        k: [B, K, R, D], their own keys.
        v: [B, K, R, V], their own values.
        past_k: [1, K, T, D], those of the whole text as recorded.
        past_v: [1, K, T, V].
        scale: of the scores.
    """

    layer: int
    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    past_k: Tensor
    past_v: Tensor
    scale: float


AttendPiece: TypeAlias = Callable[[Piece], Tensor]
"""Gives the outputs [B, H, R, V] of some rows."""


@dataclass(frozen=True)
class _Recorded:
    layer: int
    k: Tensor
    v: Tensor


class Prefix:
    """A pass over a whole text, which keeps the keys and values of every call.

    Args:
        runner: runs the model.
        ids: the text's tokens.
        rows: positions whose logits are kept.
        priced: the same text's prices, of the same rows: its calls are then taken from there, and nothing is run.

    Attributes:
        logits: [1, R, N], of those rows.
        sizes: how many heads each layer has.
        reusable: whether rows can be run alone: every call plain, in a model that takes position ids.
    """

    def __init__(
        self, runner: Runner, ids: Sequence[int], rows: Sequence[int], *, priced: Priced | None = None
    ) -> None:
        self._runner = runner
        self._calls: dict[str, _Recorded] = {}
        self.sizes: dict[int, int] = {}
        self.reusable = isinstance(runner, OwnRunner) or _takes_positions(runner)
        if priced is None:
            self.logits = runner.logits(torch.tensor([list(ids)]), rows, attention=self._keep)
            return
        like = next(module_of(runner).parameters())
        for call in priced.calls:
            k, v = (x[None].to(like) for x in (call.k, call.v))  # of the number format that they were copied from
            self._note(call.layer, call.name, call.heads, k, v, plain=call.kind == "self" and call.is_causal_alone)
        self.logits = priced.logits

    @property
    def heads(self) -> int:
        """The most heads that a layer has."""
        return max(self.sizes.values(), default=0)

    def run(self, ids: Tensor, positions: Sequence[int], rows: Sequence[int], attend: AttendPiece) -> Tensor:
        """Return the logits [B, R', N] of some rows of those that are run.

        Args:
            ids: int [B, R], the tokens that are run.
            positions: where they stand, the same for every text of the batch.
            rows: places among them.
            attend: computes each execution.
        """
        places = torch.tensor(list(positions))
        runner = self._runner
        if isinstance(runner, OwnRunner):
            return self._run_own(runner, ids, places, rows, attend)
        assert isinstance(runner, TransformersRunner), "reusable is False for any other"
        return self._run_transformers(runner, ids, places, rows, attend)

    def _keep(self, one: Executed) -> Tensor:
        plain = one.kind == "self" and one.is_causal_alone
        self._note(one.layer, one.name, one.q.shape[1], one.k, one.v, plain=plain)
        return one.attend().output

    def _note(self, layer: int, name: str, heads: int, k: Tensor, v: Tensor, *, plain: bool) -> None:
        self.sizes[layer] = max(self.sizes.get(layer, 0), heads)
        if not plain or name in self._calls:
            self.reusable = False
        if self.reusable:
            self._calls[name] = _Recorded(layer, k, v)
        else:
            self._calls.clear()

    def _piece(self, name: str, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Piece:
        past = self._calls[name]
        return Piece(past.layer, name, q, k, v, past.k, past.v, scale)

    def _run_own(self, runner: OwnRunner, ids: Tensor, places: Tensor, rows: Sequence[int], own: AttendPiece) -> Tensor:
        def door(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
            return own(self._piece(site.name, q, k, v, scale))

        transformer = runner.model.transformer
        x = transformer.embed(ids, places)  # B R M
        reading = Reading(attention=door, rotation=transformer.rotation(places))
        for block in transformer.blocks:
            x = block(x, reading)
        return transformer.logits(x[:, list(rows)])

    def _run_transformers(
        self, runner: TransformersRunner, ids: Tensor, places: Tensor, rows: Sequence[int], own: AttendPiece
    ) -> Tensor:
        def door(given: Given) -> Tensor:
            return own(self._piece(given.name, given.q, given.k, given.v, given.scale))

        model = runner.model
        given = {"input_ids": ids.to(model.device), "position_ids": places.expand(len(ids), -1).to(model.device)}
        with watched_everywhere(model.module, door):
            outputs = model.module(**given, use_cache=False)
        logits: Tensor = outputs.logits[:, list(rows)]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def own_keys(piece: Piece, positions: Sequence[int]) -> bool:
    """Whether the keys and values of rows that are run alone are those that were recorded at their positions."""
    pairs = (piece.k, piece.past_k), (piece.v, piece.past_v)
    return all(bool((own - past[:, :, list(positions)]).abs().max() <= CLOSE * past.abs().max()) for own, past in pairs)


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two arrays of logits [..., N] say the same, in nats, of every token within ten of the likeliest."""
    one, other = (torch.log_softmax(logits.double(), dim=-1) for logits in (one, other))
    likely = other > other.amax(dim=-1, keepdim=True) - 10
    return bool(torch.isfinite(one[likely]).all()) and bool(((one - other).abs()[likely] < CLOSE).all())


def _takes_positions(runner: Runner) -> bool:
    """Whether a model of transformers can be told where its tokens stand, and turns them by nothing but that."""
    if not isinstance(runner, TransformersRunner):
        return False
    config = getattr(runner.model.module, "config", None)
    turned = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    by_length = any(kind in repr(turned) for kind in ("dynamic", "longrope"))  # angles that grow with the text
    convolved = any(isinstance(module, nn.Conv1d) for module in runner.model.module.modules())  # reads its neighbours
    takes = "position_ids" in inspect.signature(runner.model.module.forward).parameters
    return takes and not by_length and not convolved
