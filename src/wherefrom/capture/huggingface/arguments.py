"""What a transformers model hands to its attention function (floor 3): read, or refused by name.

All attention functions of transformers compute one formula, softmax(cap(scale q . k) + bias + mask [, sinks]), and take
its parts as named arguments, among others that only other kernels need. What is known not to change a score is left
out; what does change one is in `Arguments`, or refused, as is whatever has a name that is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.fused import Attended
from wherefrom.errors import InputError, ModelError

READ = frozenset(
    {"scaling", "dropout", "softcap", "s_aux", "sinks", "position_bias", "indices", "is_causal", "output_attentions"}
)
IGNORED = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "grid_thw",
        "interpolate_pos_encoding",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "seq_idx",
        "sliding_window",
        "use_cache",
    }
)
"""Arguments that change no score: bookkeeping, layouts of other kernels, and windows, which the mask has already."""
WEIGHTS = "Leave output_attentions out: weights are asked of the recording, as wherefrom.weights does."


@dataclass(frozen=True)
class Arguments:
    """The named arguments of one execution.

    Attributes:
        scale: what q . k is multiplied by.
        softcap: bound on a score's size; None without one.
        sinks: [H] logits; None without.
        position_bias: added to the scores; None without one.
        indices: the sources that each destination may read, by number; None where all.
        is_causal: what the caller says of the lower triangle; None where it says nothing.
    """

    scale: float
    softcap: float | None
    sinks: Tensor | None
    position_bias: Tensor | None
    indices: Tensor | None
    is_causal: bool | None

    @classmethod
    def of(cls, where: str, named: Mapping[str, Any], q: Tensor) -> Arguments:
        """Read the named arguments of an execution with queries [B, H, T, D].

        Args:
            where: says in a sentence which attention it is.
            named: the arguments.
            q: the queries.

        Raises:
            InputError: dropout, or a request for weights.
            ModelError: an argument that may change the scores and is not known, or sinks that are not one a head.
        """
        _refuse(where, named)
        scaling, softcap, causal = named.get("scaling"), named.get("softcap"), named.get("is_causal")
        return cls(
            scale=q.shape[-1] ** -0.5 if scaling is None else float(scaling),
            softcap=None if softcap is None else float(softcap),
            sinks=_sinks(where, named, q.shape[1]),
            position_bias=named.get("position_bias"),
            indices=named.get("indices"),
            is_causal=None if causal is None else bool(causal),
        )


def _refuse(where: str, named: Mapping[str, Any]) -> None:
    unknown = [name for name in named if name not in READ | IGNORED and named[name] is not None]
    if unknown:
        raise ModelError(
            where,
            expected="arguments whose part in the scores is known",
            given=", ".join(unknown),
            way_out="This kind of attention cannot be recorded: its weights would be wrong.",
        )
    if named.get("output_attentions"):
        raise InputError(where, expected="no request for weights", given="output_attentions=True", way_out=WEIGHTS)
    if named.get("dropout"):
        raise InputError(
            where,
            expected="no dropout",
            given=f"a dropout of {named['dropout']:g}",
            way_out="Call model.eval() first: weights that are dropped at random have no log-sum-exp.",
        )


def _sinks(where: str, named: Mapping[str, Any], heads: int) -> Tensor | None:
    given = {name: named[name] for name in ("s_aux", "sinks") if named.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, Tensor) or tuple(value.shape) != (heads,):
            shape = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(
                where,
                expected=f"{name} with one logit a head, [{heads}]",
                given=shape,
                way_out="Sinks that differ between destinations cannot be recorded.",
            )
    return next(iter(given.values()), None)


def require_shapes(where: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse arrays that no kernel should see; one without keys would end the process.

    Raises:
        ModelError: the arrays are not q [B, H, T, D], k [B, K, S, D], v [B, K, S, V] with S at least 1.
    """
    if q.ndim == k.ndim == v.ndim == 4 and k.shape[1] and k.shape[2]:
        return
    raise ModelError(
        where,
        expected="q [B, H, T, D], k [B, K, S, D] and v [B, K, S, V] with at least one key",
        given=f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
        way_out="Give the model something to read, or leave the input that is empty out.",
    )


def lower_right(q: Tensor, k: Tensor) -> Tensor:
    """Return the causal map of an attention with more keys than queries, bool [1, 1, T, S]: the last row reads all."""
    rows, columns = q.shape[2], k.shape[2]
    return torch.ones((1, 1, rows, columns), dtype=torch.bool, device=q.device).tril(columns - rows)


def of_own_kernel(where: str, name: str, answer: Any, q: Tensor) -> Attended:
    """Return what a user's own attention implementation answered, if it gives lse.

    Args:
        where: says in a sentence which attention it is.
        name: of the implementation.
        answer: outputs [B, T, H, V] and lse [B, H, T].
        q: [B, H, T, D].

    Raises:
        ModelError: there is no lse, of that shape and of floating-point numbers.
    """
    output, lse = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, None)
    if not isinstance(output, Tensor) or not isinstance(lse, Tensor) or not _is_lse(lse, q):
        given = f"shape {tuple(lse.shape)}, {lse.dtype}" if isinstance(lse, Tensor) else repr(lse)
        raise ModelError(
            where,
            expected=f"{name!r}, an implementation of your own, to return the log-sum-exp of each row as its second "
            f"value, shape {tuple(q.shape[:3])}",
            given=given,
            way_out='Return it, or switch: model.set_attn_implementation("sdpa").',
        )
    return Attended(output.transpose(1, 2), lse.detach().float(), f"{name}, the user's own")


def _is_lse(lse: Tensor, q: Tensor) -> bool:
    return lse.is_floating_point() and tuple(lse.shape) == tuple(q.shape[:3])


def said(module: nn.Module, name: str) -> str:
    """Return which attention it is, for a sentence."""
    return f"the attention of {name or 'the model'} ({type(module).__name__})"
