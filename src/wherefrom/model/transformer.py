"""The readable transformer (floor 2), from token ids to logits, in one file: decoder, encoder, and both together.

Reading order is the order of computation: positions, the attention sublayer, the feed-forward sublayer, the block that
holds them together, the stack of blocks, the head. What differs between families is a switch of `Config`. The attention
itself (scores, softmax, weighted sum) is an *argument* of every forward pass: see `wherefrom.model.attention_function`.

Shapes use the alphabet of `wherefrom.attention`: B batch, H query heads, K key/value heads, T destinations,
S sources, D head size; here also M the model's width, F the feed-forward width, N the vocabulary.

Sources: Vaswani et al. 2017 (attention, blocks, encoder-decoder), Radford et al. 2019 (GPT-2: pre-norm), Devlin et al.
2019 (BERT), Touvron et al. 2023 (Llama: RMSNorm, SwiGLU, rotary positions), Su et al. 2021 (RoPE), Zhang and Sennrich
2019 (RMSNorm), Shazeer 2020 (SwiGLU), Hendrycks and Gimpel 2016 (GELU), Ainslie et al. 2023 (grouped heads).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.model.attention_function import AttentionFunction, Part, Site, fused
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.config import Config
from wherefrom.model.layers import ACTIVATIONS, Embedding, Linear, MaskedHead, RMSNorm, norm
from wherefrom.model.positions import Rotary, rotate, sinusoids

ANYTHING = Mask.bidirectional()
ROWS_AT_ONCE = 4096
"""Positions whose feed-forward is computed together: that of a long text would outgrow all else in memory."""


@dataclass(frozen=True)
class Reading:
    """What every block of one forward pass is told.

    Attributes:
        attention: computes each call of attention.
        mask: which sources a destination may read, in self-attention.
        rotation: the angles of the destinations' positions, where they are rotary.
        cache: keys and values of earlier tokens, if any are kept.
        memory: the encoder's output [B, S, M], for cross-attention.
        memory_mask: which of it may be read.
        memory_keys: by layer, its keys and values [B, K, S, D] where they are known; others are added.
    """

    attention: AttentionFunction = fused
    mask: Mask = ANYTHING
    rotation: tuple[Tensor, Tensor] | None = None
    cache: KeyValueCache | None = None
    memory: Tensor | None = None
    memory_mask: Mask = ANYTHING
    memory_keys: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Attention(nn.Module):
    """The attention sublayer: three projections, the attention function head by head, the output projection."""

    def __init__(self, config: Config, site: Site) -> None:
        super().__init__()
        inner, shared = config.heads * config.head_size, config.kv_heads * config.head_size
        bias = config.attention_bias
        self.query = Linear(config.width, inner, bias=bias)
        self.key = Linear(config.width, shared, bias=bias)
        self.value = Linear(config.width, shared, bias=bias)
        self.output = Linear(inner, config.width, bias=config.output_bias)
        normed = config.query_key_norm
        self.query_norm = RMSNorm(config.head_size, eps=config.norm_epsilon) if normed else nn.Identity()
        self.key_norm = RMSNorm(config.head_size, eps=config.norm_epsilon) if normed else nn.Identity()
        self.head_size, self.scale = config.head_size, config.head_size**-0.5
        self.site = site

    def forward(self, x: Tensor, reading: Reading) -> Tensor:
        """Return what attention adds to the residual stream, [B, T, M]."""
        q = self.query_norm(self._heads(self.query(x)))  # B H T D
        if self.site.kind == "cross":
            (k, v), mask = self._of_memory(reading), reading.memory_mask  # B K S D
        else:
            k, v = self.key_norm(self._heads(self.key(x))), self._heads(self.value(x))  # B K T D
            if reading.rotation is not None:
                q, k = rotate(q, reading.rotation), rotate(k, reading.rotation)
            if reading.cache is not None:
                k, v = reading.cache.extend(self.site.layer, k, v)  # B K S D
            mask = reading.mask
        y = reading.attention(q, k, v, mask=mask, scale=self.scale, site=self.site)
        out: Tensor = self.output(y.transpose(1, 2).flatten(2))  # B T M
        return out

    def _of_memory(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """Return keys and values of the encoder's output, which are the same at every step of a generation."""
        known = reading.memory_keys
        if self.site.layer not in known:
            assert reading.memory is not None, "the model hands its blocks a memory, or the keys and values of one"
            memory = reading.memory
            known[self.site.layer] = self.key_norm(self._heads(self.key(memory))), self._heads(self.value(memory))
        return known[self.site.layer]

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_size).transpose(1, 2)  # B H T D


class FeedForward(nn.Module):
    """The feed-forward sublayer: each position by itself, nothing moves between tokens here.

    Two linear maps with a nonlinearity between them; or, gated, a third one whose product with the first goes on
    (SwiGLU).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.gate = Linear(config.width, config.feed_forward, bias=bias) if config.gated else None
        self.up = Linear(config.width, config.feed_forward, bias=bias)
        self.down = Linear(config.feed_forward, config.width, bias=bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the feed-forward adds to the residual stream, [B, T, M]; of a long text some rows at a time."""
        if x.shape[1] <= ROWS_AT_ONCE:
            return self._rows(x)
        return torch.cat([self._rows(rows) for rows in torch.split(x, ROWS_AT_ONCE, dim=1)], dim=1)

    def _rows(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up  # B T F
        out: Tensor = self.down(inner)
        return out


class Block(nn.Module):
    """One block: attention, in a decoder with an encoder also cross-attention, then feed-forward; each added to the
    stream.

    Pre-norm, x + sublayer(norm(x)), or post-norm, norm(x + sublayer(x)).
    """

    def __init__(self, config: Config, layer: int, part: Part, prefix: str) -> None:
        super().__init__()
        name = f"{prefix}blocks.{layer}"
        self.attention_norm = norm(config)
        self.attention = Attention(config, Site(layer, f"{name}.attention", "self", part))
        self.cross_attention: Attention | None = None
        if config.encoder_layers and part == "decoder":
            self.cross_attention_norm = norm(config)
            self.cross_attention = Attention(config, Site(layer, f"{name}.cross_attention", "cross", part))
        self.feed_forward_norm, self.feed_forward = norm(config), FeedForward(config)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, reading: Reading) -> Tensor:
        """Return the residual stream after the block, [B, T, M]."""
        x = self._add(x, lambda x: self.attention(x, reading), self.attention_norm)
        if (cross := self.cross_attention) is not None:
            x = self._add(x, lambda x: cross(x, reading), self.cross_attention_norm)
        return self._add(x, self.feed_forward, self.feed_forward_norm)

    def _add(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        out: Tensor = x + sublayer(norm(x)) if self.norm_first else norm(x + sublayer(x))
        return out


class Stack(nn.Module):
    """An embedding and the blocks over it: the residual stream from token ids to the last block."""

    def __init__(self, config: Config, part: Part, layers: int, prefix: str = "") -> None:
        super().__init__()
        self.config, self.part = config, part
        self.embedding = Embedding(config.vocabulary, config.width)
        if config.positions == "learned":
            self.position_embedding = Embedding(config.context, config.width)
        if config.segments:
            self.segment_embedding = Embedding(config.segments, config.width)
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        self.rotary = Rotary(config.head_size, config.rope_base) if config.positions == "rotary" else None
        self.blocks = nn.ModuleList(Block(config, layer, part, prefix) for layer in range(layers))
        self.norm = norm(config) if config.final_norm else nn.Identity()

    def stream(
        self,
        ids: Tensor,
        *,
        attention: AttentionFunction = fused,
        cache: KeyValueCache | None = None,
        padding: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
    ) -> Tensor:
        """Return the residual stream after the last block, [B, T, M], the final norm not yet applied.

        Args:
            ids: int [B, T], the tokens that follow what the cache already holds (all tokens without a cache).
            attention: computes every call of attention; see `AttentionFunction`.
            cache: keys and values of earlier tokens, extended in place.
            padding: bool [B, T], True for real tokens, the others behind them; without a cache.
            memory: the encoder's output [B, S, M].
            memory_padding: bool [B, S], True where it stands for real tokens.

        Raises:
            InputError: no token, or more tokens than the model's context.
        """
        past = 0 if cache is None else cache.length
        end = past + ids.shape[1]
        self._require_room(past, end)
        positions = torch.arange(past, end, device=ids.device)
        causal = self.config.causal and self.part == "decoder"
        reading = Reading(
            attention=attention,
            mask=replace(_bidirectional(padding), causal=causal, window=self.config.window, offset=past),
            rotation=self.rotation(positions),
            cache=cache,
            memory=memory,
            memory_mask=self._memory_mask(memory_padding, cache),
            memory_keys={} if cache is None else cache.of_memory,
        )
        x = self.embed(ids, positions)  # B T M
        for block in self.blocks:
            x = block(x, reading)
        if cache is not None:
            cache.length = end
        return x

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the residual stream before the first block, [B, T, M], of ids [B, T] at positions [T]."""
        x: Tensor = self.config.embedding_scale * self.embedding(ids)
        if self.config.segments:
            x = x + self.segment_embedding.weight[0]
        if self.config.positions == "learned":
            x = x + self.position_embedding(positions)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(positions, self.config.width).to(x.dtype)
        out: Tensor = self.embedding_norm(x)
        return out

    def _memory_mask(self, padding: Tensor | None, cache: KeyValueCache | None) -> Mask:
        """Return which of the memory may be read; a cache that has seen it remembers."""
        if cache is None:
            return _bidirectional(padding)
        if cache.memory_mask is None or padding is not None:
            cache.memory_mask = _bidirectional(padding)
        return cache.memory_mask

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the angles of positions [T], where they are rotary."""
        return None if self.rotary is None else self.rotary(positions)

    def _require_room(self, past: int, end: int) -> None:
        if end == past or end > self.config.context:
            raise InputError(
                "the text",
                expected=f"at least one token, and at most {self.config.context} (the model's context)",
                given="no token" if end == past else f"{end} tokens",
                way_out="Write some text." if end == past else "Shorten it.",
                tokens=end,
                context=self.config.context,
            )


def _bidirectional(padding: Tensor | None) -> Mask:
    """Return the mask that keeps nothing but padding, bool [B, S], from being read."""
    return ANYTHING if padding is None else Mask.bidirectional(padding=padding.bool().cpu().numpy())


class Transformer(Stack):
    """A transformer: token ids [B, T] to logits [B, T, N]; its weights are loaded, or drawn by
    `wherefrom.model.initial`.

    A causal model scores the token *after* each position, an encoder with a head the token *at* it. `forward` is
    `stream` and then `logits`; `stream` is `embed` and each of `blocks` in turn, steps that can also be taken one by
    one (evidence does, to run one position in many versions). With an `encoder`, this stack is the decoder that reads
    it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, "decoder" if config.causal else "encoder", config.layers)
        self.encoder: Stack | None = None
        if config.encoder_layers:
            self.encoder = Stack(config, "encoder", config.encoder_layers, prefix="encoder.")
            if config.shared_embedding:
                self.encoder.embedding = self.embedding
        self.transform = MaskedHead(config) if config.head == "masked" else nn.Identity()
        self.head = None if config.head == "none" else Linear(config.width, config.vocabulary, bias=config.head_bias)
        self.tie()

    def forward(
        self,
        ids: Tensor,
        *,
        attention: AttentionFunction = fused,
        cache: KeyValueCache | None = None,
        padding: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Return logits [B, T, N]; in a causal model row t scores the token at position t + 1.

        Args:
            ids: see `stream`, as with the next five.
            attention: computes every call of attention.
            cache: keys and values of earlier tokens.
            padding: True for real tokens.
            memory: the encoder's output, from `encode`; not needed where the cache has seen it.
            memory_padding: True where it stands for real tokens.
            last_only: score the last position alone, [B, 1, N].

        Raises:
            InputError: no token, or more tokens than the model's context; a model that has no head; no memory for a
                decoder that reads one.
        """
        if self.encoder is not None and memory is None and (cache is None or not cache.of_memory):
            raise InputError(
                "the encoder's output",
                expected="a tensor [B, S, M], which the decoder reads",
                given="none",
                way_out="Give memory=model.encode(source_ids).",
            )
        x = self.stream(
            ids, attention=attention, cache=cache, padding=padding, memory=memory, memory_padding=memory_padding
        )
        return self.logits(x[:, -1:] if last_only else x)

    def encode(self, ids: Tensor, *, attention: AttentionFunction = fused, padding: Tensor | None = None) -> Tensor:
        """Return what a whole text has become, [B, S, M]: the encoder's output, or that of this stack if it is alone.

        Args:
            ids: int [B, S].
            attention: computes every call of attention.
            padding: bool [B, S], True for real tokens.

        Raises:
            InputError: no token, or more tokens than the context.
        """
        stack = self if self.encoder is None else self.encoder
        out: Tensor = stack.norm(stack.stream(ids, attention=attention, padding=padding))
        return out

    def final(self, x: Tensor) -> Tensor:
        """Return what the vocabulary matrix multiplies, [..., M], of the residual stream after the last block."""
        out: Tensor = self.transform(self.norm(x))
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits [..., N] of the residual stream after the last block, [..., M].

        Raises:
            InputError: the model has no head.
        """
        out: Tensor = self.vocabulary_head(self.final(x))
        return out

    @property
    def vocabulary_head(self) -> Linear:
        """The output matrix and its bias.

        Raises:
            InputError: the model has none, such as an encoder whose checkpoint holds hidden states only.
        """
        if self.head is None:
            kind = self.config.kind
            raise InputError(
                "the model",
                expected="a head that scores tokens",
                given=f"an {kind} without one" if kind.startswith("e") else f"a {kind} without one",
                way_out="Record it and ask for its attention; a prediction needs a checkpoint with a head"
                + (", such as BertForMaskedLM." if kind == "encoder" else "."),
            )
        return self.head

    def tie(self) -> None:
        """Make the output matrix the embedding itself, where the configuration says so."""
        if self.config.tied and self.head is not None:
            self.head.weight = self.embedding.weight

    @classmethod
    def from_parameters(cls, config: Config, parameters: Mapping[str, Tensor]) -> Transformer:
        """Return the model with given parameters under their names here; nothing is copied.

        A tied output matrix, and the embedding that an encoder shares, are not among them.

        Raises:
            InputError: a parameter that the model does not have, one missing, or one of another shape.
        """
        model = cls(config)  # its own memory is never written to, so it costs nothing before it is given back
        own = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        given = {name: list(tensor.shape) for name, tensor in parameters.items()}
        for name in own | given:
            if own.get(name) != given.get(name):
                raise InputError(
                    f"the parameter {name}",
                    expected=f"shape {own[name]}" if name in own else "none of this name",
                    given=f"shape {given[name]}" if name in given else "none",
                    way_out="`wherefrom.model.layouts.parameters` makes them of a checkpoint's tensors.",
                )
            module, _, parameter = name.rpartition(".")
            setattr(model.get_submodule(module), parameter, nn.Parameter(parameters[name], requires_grad=False))
        model.tie()
        return model.eval().requires_grad_(False)
