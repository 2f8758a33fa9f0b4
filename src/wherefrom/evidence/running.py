"""A model that runs texts, with its attention in our hands (floor 5): one face for all decoders.

What is measured of an answer needs many passes, each with its attention changed in some way, and the gradient of some.
`runner_of` takes a model of `wherefrom.load` or one of transformers; both hand every execution of attention over as an
`Executed`, and take back what it gave. Takes the model and the capture from below; gives passes to gates, gradients and
ablations beside it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from wherefrom.attention import Mask
from wherefrom.capture.fused import Attended, Limits, attend, attend_masked
from wherefrom.capture.huggingface.everywhere import watched_everywhere
from wherefrom.capture.huggingface.model import TransformersModel, as_transformers_model
from wherefrom.capture.huggingface.projections import Projections
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.huggingface.sites import Place, as_written, layers_without, places
from wherefrom.capture.huggingface.texts import label_of
from wherefrom.capture.verbs import is_module
from wherefrom.errors import InputError, WherefromError
from wherefrom.evidence.goal import unknown_token
from wherefrom.model.attention_function import Site
from wherefrom.model.language import LanguageModel, require_model
from wherefrom.model.transformer import Attention

PROBE = 4
"""Tokens of the pass that shows where a model of transformers has its attention."""


@dataclass
class Executed:
    """One execution of attention, before it is computed.

    Attributes:
        layer: its layer, from 0.
        name: its module's path.
        repeat: how often the module had run before in this pass.
        q: [B, H, T, D], positions rotated in.
        k: [B, K, S, D].
        v: [B, K, S, V].
        masks: who may read whom: one for all texts, or one a text.
        scale: of the scores.
        softcap: bound c on a score's size, c tanh(s / c), before anything is added; None without.
        bias: [B or 1, H or 1, T, S], finite, added to the scores by the model itself; None without.
        sinks: [H] logits; None without.
        kind: "self", or "cross".
        part: "decoder", or the name of another stack.
    """

    layer: int
    name: str
    repeat: int
    q: Tensor
    k: Tensor
    v: Tensor
    masks: tuple[Mask, ...]
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    kind: str = "self"
    part: str = "decoder"
    _plainly: Callable[[], Attended] | None = field(default=None, repr=False)

    @property
    def is_causal_alone(self) -> bool:
        """Whether a row reads every column up to its own, and nothing else is done to the scores."""
        rule = self.masks[0].within(self.k.shape[2]) if len(self.masks) == 1 else None
        plain = self.bias is None and self.sinks is None and self.softcap is None
        square = self.q.shape[2] == self.k.shape[2]
        return plain and square and rule is not None and rule.only_causal and rule.offset == 0

    def attend(self, *, added: Tensor | None = None, removed: Tensor | None = None) -> Attended:
        """Return outputs [B, H, T, V] and lse [B, H, T], changed where something is given; the outputs have a gradient.

        Args:
            added: numbers that are added to the scores, broadcastable to [B, H, T, S]; they may require a gradient.
            removed: bool, broadcastable likewise: edges that may not be read.
        """
        if added is None and removed is None:
            return self._unchanged()
        bias = self.bias if added is None else added if self.bias is None else self.bias + added
        permitted = self.permitted()
        if removed is not None:
            permitted = permitted & ~removed
        if bias is not None:
            bias = bias.expand(*bias.shape[:2], *permitted.shape[2:]) if bias.ndim == 4 else bias
        limits = Limits.of_permitted(permitted, self.q, added=bias)
        return attend(self.q, self.k, self.v, limits=limits, scale=self.scale, softcap=self.softcap, sinks=self.sinks)

    def permitted(self, piece: tuple[range, range] | None = None) -> Tensor:
        """Return who may read whom, bool [B or 1, H or 1, T, S]: T x S bytes for each.

        Args:
            piece: some rows and columns, of which the map is then; None: all.
        """
        rows, columns = self.q.shape[2], self.k.shape[2]
        if piece is None:
            maps = [torch.from_numpy(mask.dense(rows, columns)) for mask in self.masks]
        else:
            maps = [torch.from_numpy(mask.permitted(*piece)) for mask in self.masks]
        shaped = [own if own.ndim == 4 else own.reshape(1, -1, *own.shape[-2:]) for own in maps]
        heads = max(own.shape[1] for own in shaped)
        return torch.cat([own.expand(-1, heads, -1, -1) for own in shaped]).to(self.q.device)

    def _unchanged(self) -> Attended:
        if self._plainly is not None:
            return self._plainly()
        return attend_masked(
            self.q, self.k, self.v, mask=self.masks[0], scale=self.scale, softcap=self.softcap, sinks=self.sinks
        )


def scores_of(q: Tensor, k: Tensor, scale: float, softcap: float | None = None) -> Tensor:
    """Return the scores [B, H, R, S] of rows q [B, H, R, D] over keys k [B, K, S, D], in float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(wide).reshape(len(q), k.shape[1], -1, q.shape[3])  # B K G*R D: a group of heads is one product
    scores = scale * (grouped @ k.to(wide).transpose(-1, -2))
    scores = scores.reshape(len(scores), *q.shape[1:3], k.shape[2])
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


Attend: TypeAlias = Callable[[Executed], Tensor]
"""Gives the outputs [B, H, T, V] of an execution."""


class Runner(ABC):
    """A decoder that runs texts.

    Attributes:
        name: of the model.
        fingerprint: of its weights.
        format: the number format that it computes in, such as "float32".
        vocabulary: how many tokens it chooses among.
        context: the most tokens that it reads; None where that is not known.
    """

    name: str
    fingerprint: str
    format: str
    vocabulary: int
    context: int | None

    @abstractmethod
    def logits(
        self,
        ids: Tensor,
        rows: Sequence[int],
        *,
        attention: Attend | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, R, N] of some rows, float32 at least; differentiable where gradients are switched on.

        Args:
            ids: int [B, T].
            rows: positions, the same for each text.
            attention: computes each execution; unless given, the model as it is.
            padding: bool [B, T], True for real tokens, the others behind them.
        """

    @abstractmethod
    def projection(self, name: str) -> Tensor | None:
        """Return the output projection [M, H * V] of an attention module; None where there is no single matrix."""

    @abstractmethod
    def label(self, token: int) -> str:
        """Return what a person sees of a token."""

    @property
    def mixes(self) -> bool:
        """Whether tokens exchange information by other ways than attention too, such as recurrences or convolutions."""
        return False


class OwnRunner(Runner):
    """A decoder of `wherefrom.load`."""

    def __init__(self, model: LanguageModel) -> None:
        kind = require_model(model).config.kind
        if kind != "decoder":
            raise _no_decoder(model.name, kind)
        model.transformer.vocabulary_head  # noqa: B018, refuses one without a head
        _require_differentiable(model.name, model.transformer)
        self.model, self.name, self.fingerprint = model, model.name, model.fingerprint
        self.format = str(next(model.transformer.parameters()).dtype).removeprefix("torch.")
        self.vocabulary, self.context = model.config.vocabulary, model.config.context

    def logits(
        self, ids: Tensor, rows: Sequence[int], *, attention: Attend | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Return the logits [B, R, N] of some rows; see `Runner.logits`."""

        def door(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
            one = Executed(site.layer, site.name, 0, q, k, v, (mask,), scale, kind=site.kind, part=site.part)
            return one.attend().output if attention is None else attention(one)

        transformer = self.model.transformer
        _require_runnable(ids, self.vocabulary)
        with _tensors_that_last():
            x = transformer.stream(ids, attention=door, padding=padding)  # B T M
            return transformer.logits(x[:, list(rows)])

    def projection(self, name: str) -> Tensor | None:
        """Return the output projection of a layer."""
        module = self.model.transformer.get_submodule(name)
        return module.output.weight.detach() if isinstance(module, Attention) else None

    def label(self, token: int) -> str:
        """Return what a person sees of a token."""
        return self.model.tokenizer.label(token)


class TransformersRunner(Runner):
    """A decoder of transformers."""

    def __init__(self, model: TransformersModel) -> None:
        if model.in_pairs:
            raise _no_decoder(model.name, "encoder-decoder")
        _require_differentiable(model.name, model.module)
        self.model, self.name, self.fingerprint = model, model.name, model.fingerprint
        first = next(model.module.parameters(), torch.empty(0))
        self.format = str(first.dtype).removeprefix("torch.")
        self.vocabulary, self.context = model.vocabulary, model.context or None
        self._places: dict[str, Place] = {}
        self._projections: dict[str, Tensor | None] = {}
        self._probe()
        table = getattr(model.module, "get_input_embeddings", lambda: None)()
        self._known = int(getattr(table, "num_embeddings", 0))  # 0: how many tokens it reads is not known

    def logits(
        self, ids: Tensor, rows: Sequence[int], *, attention: Attend | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Return the logits [B, R, N] of some rows; see `Runner.logits`."""

        def through(given: Given) -> Tensor:
            one = self._executed(given)
            return one.attend().output if attention is None else attention(one)

        _require_runnable(ids, self._known, self.model.device)
        if torch.is_grad_enabled():
            _require_differentiable(self.name, self.model.module)
        ids = ids.to(self.model.device)
        named = {"input_ids": ids, "use_cache": False}
        if padding is not None:
            named["attention_mask"] = padding.long().to(ids.device)
        if self.model.accepts("logits_to_keep"):  # those of every position of a long text take more room than all else
            named["logits_to_keep"] = ids.shape[1] - min(rows)
        with _tensors_that_last(), watched_everywhere(self.model.module, through):
            outputs = self.model.module(**named)
            first = ids.shape[1] - outputs.logits.shape[1]
            logits: Tensor = outputs.logits[:, [row - first for row in rows]]
            return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def projection(self, name: str) -> Tensor | None:
        """Return the output projection of an attention module; None where there is no single matrix."""
        return self._projections.get(name)

    def label(self, token: int) -> str:
        """Return what a person sees of a token."""
        return label_of(self.model.tokenizer)(token)

    @cached_property
    def mixes(self) -> bool:
        """Whether, each attention reading its own row alone, what a token is still changes a later one's logits.

        Of a model whose embeddings are not seen: whether some layer has no attention.
        """
        heard: list[Tensor] = []

        def alone(given: Given) -> Tensor:
            own = given.v[:, :, -given.q.shape[2] :]
            return own.repeat_interleave(given.q.shape[1] // own.shape[1], dim=1)

        def hear(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            if output.shape[:2] != ids.shape:
                return output
            steps = torch.linspace(-1, 1, output.numel()).view_as(output)  # of no token, which may be all zero
            heard.append(steps.to(output).requires_grad_())
            return heard[-1].clone()

        ids = torch.zeros(1, PROBE, dtype=torch.long, device=self.model.device)
        with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
            for module in self.model.module.modules():
                if isinstance(module, nn.Embedding):
                    stack.callback(module.register_forward_hook(hear).remove)
            stack.enter_context(watched_everywhere(self.model.module, alone))
            last = self.model.module(input_ids=ids, use_cache=False).logits[0, -1]
            if not heard:
                return bool(layers_without(self.model.module, self._places))
            found = torch.autograd.grad(last.float().square().sum(), heard, allow_unused=True)
        return any(bool(own[:, :-1].any()) for own in found if own is not None)

    def _executed(self, given: Given) -> Executed:
        place = self._places.get(given.name) or places(self.model.module, [given.name])[given.name]
        masks = given.readable.masks
        return Executed(
            layer=place.layer,
            name=given.name,
            repeat=given.turn,
            q=given.q,
            k=given.k,
            v=given.v,
            masks=masks[:1] if all(mask is masks[0] for mask in masks) else masks,
            scale=given.scale,
            softcap=given.softcap,
            bias=given.readable.bias,
            sinks=given.sinks,
            kind=place.kind,
            part=place.part,
            _plainly=given.attend,
        )

    @torch.no_grad()
    def _probe(self) -> None:
        """Find where the model has its attention, and what projects it, by a pass over a few tokens."""
        names: list[str] = []
        looks_ahead: list[str] = []
        found = Projections(self.model.module)

        def note(given: Given) -> Tensor:
            names.append(given.name)
            mask, size = given.readable.masks[0], (given.q.shape[2], given.k.shape[2])
            if size[0] == size[1] and np.triu(mask.dense(*size), 1).any():
                looks_ahead.append(given.name)
            output = given.attend().output
            found.note(given.name, output, heads=output.shape[1])
            return output

        ids = torch.zeros(1, PROBE, dtype=torch.long, device=self.model.device)
        _require_runnable(ids, 0, self.model.device)
        with drawing_nothing(self.model), found, watched_everywhere(self.model.module, note) as watch:
            try:
                outputs = self.model.module(input_ids=ids, use_cache=False)
            except WherefromError:
                raise
            except (AttributeError, TypeError, ValueError) as error:
                raise self._needs_more() from error
        if not isinstance(getattr(outputs, "logits", None), Tensor) or outputs.logits.ndim != 3:
            raise InputError(
                "the model",
                expected="one that predicts tokens",
                given=f"{type(self.model.module).__name__}, which gives no logits at each position",
                way_out="Load it with its language-model head, such as AutoModelForCausalLM.",
            )
        if looks_ahead:
            raise _no_decoder(self.name, "encoder")
        unseen = watch.gaps
        if not names or unseen:
            raise InputError(
                "the model",
                expected="a decoder all of whose attention can be changed",
                given=f"{self.name}, in which {unseen[0].name or 'some'} ({unseen[0].what}) passes by"
                if unseen
                else f"{self.name}, in which there is none",
                way_out="Of such a model the attention that is seen can be recorded, and no more.",
            )
        self._places = places(self.model.module, list(dict.fromkeys(names)))
        self._projections = {name: one.weight for name, one in found.found().items()}

    def _needs_more(self) -> InputError:
        """Return how a model is refused that does not run on token ids."""
        named = inspect.signature(as_written(self.model.module).forward).parameters.values()
        left_open = [one.name for one in named if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
        needed = " and ".join(name for name in left_open if name != "input_ids")
        return InputError(
            "the model",
            expected="one that reads token ids alone",
            given=f"{self.name}, which {f'needs {needed}' if needed else 'does not run on them'}",
            way_out=f"{self.model.takes}; what it does with them can be recorded: wherefrom.record(model, ...).",
        )


@contextmanager
def drawing_nothing(model: TransformersModel) -> Iterator[None]:
    """Run a model in training mode only if it draws no random numbers then, as dropout does.

    Raises:
        InputError: it drew some.
    """
    before = _random_states(model.device)
    yield
    drew = any(not torch.equal(*states) for states in zip(before, _random_states(model.device), strict=True))
    if drew and any(part.training for part in model.module.modules()):
        raise InputError(
            "the model",
            expected="one that gives the same for the same text",
            given=f"{model.name} in training mode, in which it draws random numbers, as for dropout",
            way_out="Call model.eval() first.",
        )


def _random_states(device: torch.device) -> list[Tensor]:
    """Return what the next random numbers hang on, of the CPU and of a model's device."""
    return [torch.get_rng_state(), *((torch.cuda.get_rng_state(device),) if device.type == "cuda" else ())]


@contextmanager
def _tensors_that_last() -> Iterator[None]:
    """Leave inference mode, whose tensors no later pass may differentiate; gradients stay as they are switched."""
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def _require_differentiable(name: str, module: nn.Module) -> None:
    """Refuse a model that computes its layers again in a backward pass, which attention in our hands does not allow.

    And one whose weights are of inference mode: no pass of it has a gradient, in that mode or outside.
    """
    if any(part.training and getattr(part, "gradient_checkpointing", False) is True for part in module.modules()):
        raise InputError(
            "the model",
            expected="one whose passes can be differentiated",
            given=f"{name} in training mode with gradient checkpointing, which runs its layers once more",
            way_out="Call model.eval() first.",
        )
    if any(parameter.is_inference() for parameter in module.parameters()):
        raise InputError(
            "the model",
            expected="one whose passes can be differentiated",
            given=f"{name}, which was made within torch.inference_mode()",
            way_out="Load it outside of that; it can be asked within.",
        )


def _require_runnable(ids: Tensor, known: int, device: torch.device | None = None) -> None:
    """Refuse ids beyond the tokens that a model knows, and a pass under autocast, whose rounding would pass unseen.

    Args:
        ids: of some texts.
        known: how many tokens the model reads; 0 where that is not known.
        device: of the model; the CPU unless given.
    """
    if known and ids.numel() and int(ids.max()) >= known:
        raise unknown_token(int(ids.max()), known)
    kind = "cpu" if device is None else device.type
    if torch.is_autocast_enabled(kind):
        raise InputError(
            "the model",
            expected="one that computes in the number format of its weights",
            given="torch.autocast, which changes the format from one step to the next",
            way_out="Ask outside of it; a model can be loaded in another format: model.to(torch.bfloat16).",
        )


def runner_of(model: Any, tokenizer: Any = None) -> Runner:
    """Return what runs a model's texts.

    Args:
        model: a decoder of `wherefrom.load`, or one of transformers.
        tokenizer: of a model of transformers.

    Raises:
        InputError: another kind of model, or one whose attention cannot all be changed.
    """
    if isinstance(model, Runner):
        return model
    if isinstance(model, LanguageModel) or not is_module(model):
        return OwnRunner(model)
    return TransformersRunner(as_transformers_model(model, tokenizer))


def require_room(runner: Runner, tokens: int, prompt: int, *, way_out: str = "Shorten the prompt.") -> None:
    """Refuse a prompt and its answer that are longer than a model's context.

    Args:
        runner: of the model.
        tokens: of both.
        prompt: how many of them stand before the answer.
        way_out: what can be done about it.

    Raises:
        InputError: they are.
    """
    if runner.context is not None and tokens > runner.context:
        raise InputError(
            "the prompt and its answer",
            expected=f"at most {runner.context:,} tokens (the context of {runner.name})",
            given=f"{tokens:,}, {tokens - prompt:,} of them the answer's",
            way_out=way_out,
            tokens=tokens,
            context=runner.context,
        )


def _no_decoder(name: str, kind: str) -> InputError:
    return InputError(
        "the model",
        expected="a decoder, which writes its answer behind the prompt",
        given=f"{name}, an {kind}",
        way_out="Ask about one of its predictions instead: wherefrom.trace(model, text).",
        kind=kind,
    )
