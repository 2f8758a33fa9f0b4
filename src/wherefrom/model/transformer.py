"""The readable transformer (floor 2): a decoder of the Llama family, from token ids to logits, in one file.

Reading order is the order of computation: rotary positions, one attention sublayer, the feed-forward sublayer,
the block that holds both together, the stack. The attention itself (scores, softmax, weighted sum) is an *argument*
of every forward pass: `fused` and its twin `plain` stand here, a recorder or a cut is handed in from above.

Shapes use the alphabet of `wherefrom.attention`: B batch, H query heads, K key/value heads, T destinations,
S sources, D head size; here also M the model's width, F the feed-forward width, N the vocabulary.

Sources: Vaswani et al. 2017 (attention, blocks), Touvron et al. 2023 (Llama: RMSNorm, SwiGLU, rotary positions),
Su et al. 2021 (RoPE), Zhang and Sennrich 2019 (RMSNorm), Shazeer 2020 (SwiGLU), Ainslie et al. 2023 (grouped heads).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.model.config import Config


@dataclass(frozen=True)
class Site:
    """Where in the model a call of attention happens: its layer, its module's name, and its kind ("self")."""

    layer: int
    name: str
    kind: str = "self"


class AttentionFunction(Protocol):
    """What the model asks for at every layer, once a forward pass, in the order of the layers.

    Given q [B, H, T, D], k [B, K, S, D] and v [B, K, S, D] with positions already rotated in, the rule of who
    may read whom, and the scale of the scores, it returns the outputs y [B, H, T, D]. It must not change its inputs.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [B, H, T, D]."""


def fused(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
    """Scaled dot-product attention by torch's fused kernel: the n x n weights are never formed."""
    destinations, sources = q.shape[2], k.shape[2]
    if mask.only_causal and mask.offset == 0 and destinations == sources:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    permitted = permitted_tensor(mask, destinations, sources, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=permitted, scale=scale, enable_gqa=True)


def plain(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
    """The same in plain lines, with the weights in full: what `fused` is tested against."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # B H S D
    scores = scale * (q @ k.transpose(-1, -2))  # B H T S
    permitted = permitted_tensor(mask, q.shape[2], k.shape[2], q.device)
    if permitted is not None:
        scores = scores.masked_fill(~permitted, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v  # B H T D


def permitted_tensor(mask: Mask, destinations: int, sources: int, device: torch.device) -> Tensor | None:
    """Return who may read whom as bool [T, S] (or [H, T, S]), or None where everything is permitted."""
    if destinations == 1 and mask.only_causal and mask.offset + 1 >= sources:
        return None  # the newest position may read all that came before it: no n x n, no mask
    dense: np.ndarray = mask.dense(destinations, sources)
    return None if dense.all() else torch.from_numpy(dense).to(device)


class Rotary(nn.Module):
    """Rotary positions: pairs of coordinates of q and k turn by an angle proportional to the position.

    The score of a rotated query and key then depends on their contents and on their distance alone. Coordinate c is
    paired with c + D/2 (the layout of Hugging Face checkpoints; the paper pairs neighbours).
    """

    def __init__(self, head_size: int, base: float) -> None:
        super().__init__()
        self.head_size, self.base = head_size, base

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, D] of the angles at `positions` [T], in float32 whatever the weights are."""
        even = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=positions.device)
        frequency = 1.0 / self.base ** (even / self.head_size)  # D/2
        angle = torch.outer(positions.float(), frequency)  # T D/2
        angle = torch.cat((angle, angle), dim=-1)  # T D
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn q or k [B, H, T, D] by the angles of its positions."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class KeyValueCache:
    """The keys and values of what has been read so far, one buffer a layer, so that a new token reads, not recomputes.

    Args:
        config: the model's.
        capacity: how many positions fit; asking for more is an `InputError`.
        batch: rows read side by side.
    """

    def __init__(self, config: Config, capacity: int, batch: int = 1, dtype: torch.dtype = torch.float32) -> None:
        shape = (batch, config.kv_heads, capacity, config.head_size)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(config.layers)]
        self.capacity, self.length = capacity, 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [B, K, T, D] behind what is there; return views [B, K, S, D] of all so far."""
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise InputError(
                "the key/value cache",
                expected=f"at most {self.capacity} positions",
                given=str(end),
                way_out="Make the cache with a larger capacity.",
            )
        self.keys[layer][:, :, self.length : end] = k
        self.values[layer][:, :, self.length : end] = v
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class Linear(nn.Linear):
    """`torch.nn.Linear` whose weights are not drawn at random when it is made: they are loaded."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` whose rows are not drawn at random when it is made: they are loaded."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Attention(nn.Module):
    """The attention sublayer: three projections, the attention function head by head, the output projection."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        inner, shared = config.heads * config.head_size, config.kv_heads * config.head_size
        bias = config.attention_bias
        self.query = Linear(config.width, inner, bias=bias)
        self.key = Linear(config.width, shared, bias=bias)
        self.value = Linear(config.width, shared, bias=bias)
        self.output = Linear(inner, config.width, bias=bias)
        self.head_size, self.scale = config.head_size, config.head_size**-0.5
        self.site = Site(layer, f"blocks.{layer}.attention")

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention: AttentionFunction,
        cache: KeyValueCache | None,
    ) -> Tensor:
        """Return what attention adds to the residual stream, [B, T, M]."""
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))  # B H|K T D
        q, k = rotate(q, rotation), rotate(k, rotation)
        past = 0
        if cache is not None:
            past = cache.length
            k, v = cache.extend(self.site.layer, k, v)  # B K S D
        y = attention(q, k, v, mask=Mask(causal=True, offset=past), scale=self.scale, site=self.site)
        out: Tensor = self.output(y.transpose(1, 2).flatten(2))  # B T M
        return out

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_size).transpose(1, 2)  # B H T D


class FeedForward(nn.Module):
    """The feed-forward sublayer, SwiGLU: each position by itself, nothing moves between tokens here."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        bias = config.mlp_bias
        self.gate = Linear(config.width, config.feed_forward, bias=bias)
        self.up = Linear(config.width, config.feed_forward, bias=bias)
        self.down = Linear(config.feed_forward, config.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the feed-forward adds to the residual stream, [B, T, M]."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """One block: normalize, attend, add; normalize, feed forward, add (pre-norm)."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.attention = Attention(config, layer)
        self.feed_forward_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        attention: AttentionFunction,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the residual stream after the block, [B, T, M]."""
        x = x + self.attention(self.attention_norm(x), rotation, attention, cache)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(nn.Module):
    """A causal language model: token ids [B, T] to next-token logits [B, T, N]; its weights are loaded, not drawn.

    `forward` is `stream` and then `logits`; `stream` is `embed`, `rotary` and each of `blocks` in turn, steps that can
    also be taken one by one (evidence does, to run one position in many versions).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocabulary, config.width)
        self.rotary = Rotary(config.head_size, config.rope_base)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.head = Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        ids: Tensor,
        *,
        attention: AttentionFunction = fused,
        cache: KeyValueCache | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Return logits [B, T, N]; row t scores the token at position t + 1.

        Args:
            ids: int [B, T], the tokens that follow what the cache already holds (all tokens without a cache).
            attention: computes every layer's attention; see `AttentionFunction`.
            cache: keys and values of earlier tokens, extended in place.
            last_only: score the last position alone, [B, 1, N].

        Raises:
            InputError: no token, or more tokens than the model's context.
        """
        x = self.stream(ids, attention=attention, cache=cache)  # B T M
        return self.logits(x[:, -1:] if last_only else x)

    def stream(
        self, ids: Tensor, *, attention: AttentionFunction = fused, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Return the residual stream after the last block, [B, T, M]: `forward` without the logits."""
        past = 0 if cache is None else cache.length
        end = past + ids.shape[1]
        if end == past or end > self.config.context:
            raise InputError(
                "the text",
                expected=f"at least one token, and at most {self.config.context} (the model's context)",
                given="no token" if end == past else f"{end} tokens",
                way_out="Write some text." if end == past else "Shorten it.",
                tokens=end,
                context=self.config.context,
            )
        x = self.embed(ids)  # B T M
        rotation = self.rotary(torch.arange(past, end, device=ids.device))
        for block in self.blocks:
            x = block(x, rotation, attention, cache)
        if cache is not None:
            cache.length = end
        return x

    def embed(self, ids: Tensor) -> Tensor:
        """Return the residual stream before the first block, [B, T, M]."""
        x: Tensor = self.embedding(ids)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return the next-token logits [..., N] of the residual stream after the last block, [..., M]."""
        out: Tensor = self.head(self.norm(x))
        return out

    @classmethod
    def from_tensors(cls, config: Config, tensors: Mapping[str, Tensor]) -> Transformer:
        """Return the model with the given weights, named as in a Llama checkpoint; nothing is copied."""
        model = cls(config)  # its own memory is never written to, so it costs nothing before it is given back
        state = {own: tensors[theirs] for own, theirs in checkpoint_names(config).items()}
        if config.tied:
            state["head.weight"] = state["embedding.weight"]
        model.load_state_dict(state, assign=True)
        if config.tied:
            model.head.weight = model.embedding.weight
        return model.eval().requires_grad_(False)


def checkpoint_names(config: Config) -> dict[str, str]:
    """Return, for each of our parameters, its name in a Llama checkpoint of the Hugging Face layout."""
    within_block = {
        "attention_norm.weight": "input_layernorm.weight",
        "feed_forward_norm.weight": "post_attention_layernorm.weight",
    }
    biased = {True: ("weight", "bias"), False: ("weight",)}
    for own, theirs in {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}.items():
        for part in biased[config.attention_bias]:
            within_block[f"attention.{own}.{part}"] = f"self_attn.{theirs}.{part}"
    for own, theirs in {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}.items():
        for part in biased[config.mlp_bias]:
            within_block[f"feed_forward.{own}.{part}"] = f"mlp.{theirs}.{part}"
    names = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if not config.tied:
        names["head.weight"] = "lm_head.weight"
    for layer in range(config.layers):
        for own, theirs in within_block.items():
            names[f"blocks.{layer}.{own}"] = f"model.layers.{layer}.{theirs}"
    return names
