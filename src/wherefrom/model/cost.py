"""What a forward pass costs, counted (floor 2): multiply-adds, parameters and bytes, from a model's shape alone.

One multiply-add is one product and the one sum that takes it in: 2 FLOPs. Counted are the matrix products, as whole
numbers; norms, softmax, activations, rotations and biases take one step a number and no matrix, and are left out.

The scores q . k and the weighted sums of v, *pair work*, are counted twice: for the pairs that the mask permits, which
is what the lesson's equations ask for (n (n + 1) / 2 where causal), and for all n x n, which is what an implementation
computes that masks afterwards. A fused causal kernel skips whole blocks of pairs above the diagonal, so what it
computes lies between the two and near the first.

It takes errors and checks from below, and `Config` beside it; no model and no torch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal, TypeAlias, get_args

from wherefrom.checks import check_kind, whole
from wherefrom.errors import InputError
from wherefrom.model.config import Config

Pairs: TypeAlias = Literal["permitted", "all"]
PartOfPass: TypeAlias = Literal["projections", "scores", "sums", "output", "feed_forward", "head"]
Stack: TypeAlias = Literal["decoder", "encoder"]
Against: TypeAlias = Literal["feed_forward", "everything_else"]
Quadratic: TypeAlias = tuple[int, int, int]
"""(a, b, c) of a n^2 + b n + c."""

PAIR_WORK: tuple[PartOfPass, ...] = ("scores", "sums")
MOST_TOKENS = 10**9
"""Longer texts are refused: a slip of the keyboard, since no model reads them."""


@dataclass(frozen=True)
class Work:
    """The multiply-adds of one part of a pass, the same in each of its layers.

    Attributes:
        part: "projections" to queries, keys and values; "scores"; "sums", of the values by their weights; "output", the
            projection behind them; "feed_forward"; or "head", the vocabulary's.
        stack: "decoder" or "encoder".
        cross: whether it is the decoder's reading of the encoder's output.
        layers: how many layers have it; 1 for the head, which is in none.
        permitted: multiply-adds of one layer, permitted pairs only.
        all_pairs: the same where every destination meets every source; another number in pair work only.
    """

    part: PartOfPass
    stack: Stack
    cross: bool
    layers: int
    permitted: int
    all_pairs: int

    def one_layer(self, pairs: Pairs = "permitted") -> int:
        """Return the multiply-adds of one layer."""
        return self.all_pairs if pairs == "all" else self.permitted

    def all_layers(self, pairs: Pairs = "permitted") -> int:
        """Return the multiply-adds of all its layers."""
        return self.layers * self.one_layer(pairs)


@dataclass(frozen=True)
class PassCost:
    """What one forward pass over one text costs, counted.

    Attributes:
        tokens: of the text, n; of the decoder's where there is an encoder beside it.
        source_tokens: of the encoder's text; 0 without one.
        scored: for how many positions logits are computed.
        beyond_context: whether either text is longer than the model's context, so that the model refuses it.
        work: its parts, in the order of computation.
        parameters: numbers that the model holds, each tensor once.
        weight_bytes: of the parameters.
        cache_bytes: of the keys and values that generation keeps, cross-attention's too; 0 for an encoder alone.
        dense_bytes: of the n x n weights of all heads and layers, which only an implementation that forms them has.
    """

    tokens: int
    source_tokens: int
    scored: int
    beyond_context: bool
    work: tuple[Work, ...]
    parameters: int
    weight_bytes: int
    cache_bytes: int
    dense_bytes: int

    def multiply_adds(self, *parts: PartOfPass, pairs: Pairs = "permitted") -> int:
        """Return the multiply-adds of some parts in all layers; of all parts if none is named."""
        return sum(work.all_layers(pairs) for work in self.work if not parts or work.part in parts)

    def share(self, *parts: PartOfPass, pairs: Pairs = "permitted") -> float:
        """Return what share of all multiply-adds some parts take."""
        return self.multiply_adds(*parts, pairs=pairs) / self.multiply_adds(pairs=pairs)

    def one_layer(self, stack: Stack | None = None, pairs: Pairs = "permitted") -> int:
        """Return the multiply-adds of one layer; of the stack that predicts, cross-attention included, unless given."""
        chosen = self.work[-1].stack if stack is None else stack
        return sum(work.one_layer(pairs) for work in self.work if work.stack == chosen and work.part != "head")


def count(
    config: Config, tokens: int, *, source_tokens: int | None = None, last_only: bool = True, item_size: int = 4
) -> PassCost:
    """Return what one forward pass over a text of that many tokens costs; nothing runs.

    Args:
        config: the model's shape.
        tokens: of the text, in a batch of one; of the decoder's where there is an encoder beside it.
        source_tokens: of the encoder's text; as many unless given. Only where there is such an encoder.
        last_only: logits of the last position alone, as when a text is continued; else of every position, as in
            training.
        item_size: bytes of a number: 4 for float32.

    Raises:
        InputError: no configuration, a number below 1 or no whole one, more than 1,000,000,000 tokens, or source tokens
            for a model that reads none.
    """
    config = check_config(config)
    tokens = check_tokens("the number of tokens", tokens)
    sources = _sources(config, tokens, source_tokens)
    item_size = whole("the bytes of a number", item_size, least=1, way_out="float32 has 4, half precision 2.")
    scored = 0 if config.head == "none" else 1 if last_only else tokens
    held = parameters(config)
    kept = 2 * config.kv_heads * config.head_size * item_size  # bytes of one position's key and value in a layer
    formed = config.layers * tokens * tokens + config.encoder_layers * sources * sources
    return PassCost(
        tokens=tokens,
        source_tokens=sources,
        scored=scored,
        beyond_context=max(tokens, sources) > config.context,
        work=tuple(_work(config, tokens, sources, scored)),
        parameters=held,
        weight_bytes=held * item_size,
        cache_bytes=kept * config.layers * (tokens + sources) if config.causal else 0,
        dense_bytes=(formed + config.layers * tokens * sources) * config.heads * item_size,
    )


def parameters(config: Config) -> int:
    """Return how many numbers a model holds, each tensor once: a tied output matrix is the embedding itself."""
    norm, embedding = _norm(config), config.vocabulary * config.width
    total = embedding + _stack_parameters(config, config.layers, cross=bool(config.encoder_layers))
    if config.encoder_layers:
        total += _stack_parameters(config, config.encoder_layers, cross=False)
        total += 0 if config.shared_embedding else embedding
    if config.head == "masked":
        total += config.width * config.width + config.width + norm
    if config.head != "none":
        total += (0 if config.tied else embedding) + (config.vocabulary if config.head_bias else 0)
    return total


def permitted_pairs(tokens: int, *, causal: bool, window: int | None = None) -> int:
    """Return how many pairs (destination, source) of one text a mask permits, counted without forming it.

    Args:
        tokens: destinations, and as many sources.
        causal: whether a destination reads only what came before it, and itself.
        window: how many keys a destination reads at most, as `wherefrom.attention.Mask` has it.
    """
    a, b, c = _twice_pairs(causal, window, past_window=window is not None and tokens > window)
    return (a * tokens * tokens + b * tokens + c) // 2


def crossover(
    config: Config, against: Against = "feed_forward", *, pairs: Pairs = "permitted", last_only: bool = True
) -> int | None:
    """Return the smallest n at which pair work takes more multiply-adds than the feed-forward, or than all the rest.

    From there on it always does: pair work is convex in n and begins at 0, everything else is a line. With an encoder
    beside the decoder both texts have n tokens. The n may be beyond the model's context.

    Args:
        config: the model's shape.
        against: "feed_forward", or "everything_else": projections, feed-forward and vocabulary head together.
        pairs: "permitted" by the mask, or "all" n x n.
        last_only: as in `count`; the head is a part of everything else.

    Returns:
        None where it never does: with a window, pair work too is a line in the end.

    Raises:
        InputError: no configuration, or a choice that is none of these.
    """
    config = check_config(config)
    _require_choice("against", against, Against)
    _require_choice("pairs", pairs, Pairs)
    slope, constant = _line(config, against, last_only)
    window = config.window if pairs == "permitted" else None
    first = _first_above(_difference(config, pairs, slope, constant, past_window=False))
    if window is None or (first is not None and first <= window):
        return first
    later = _first_above(_difference(config, pairs, slope, constant, past_window=True))
    return None if later is None else max(later, window + 1)


def check_config(config: Any) -> Config:
    """Return `config` if it is a configuration.

    Raises:
        InputError: it is not.
    """
    return check_kind("the configuration", config, Config, way_out="A model's own is model.config.")


def check_tokens(what: str, tokens: Any) -> int:
    """Return a number of tokens as an int.

    Raises:
        InputError: no whole number, one below 1, or more than any model reads.
    """
    number = whole(what, tokens, least=1, way_out="A text has at least one token.")
    if number > MOST_TOKENS:
        raise InputError(
            what,
            expected=f"at most {MOST_TOKENS:,}",
            given=f"{number:,}",
            way_out="No model reads so long a text.",
            value=number,
        )
    return number


def _sources(config: Config, tokens: int, given: Any) -> int:
    if config.encoder_layers:
        return tokens if given is None else check_tokens("the number of source tokens", given)
    if given is not None:
        raise InputError(
            "the number of source tokens",
            expected=f"none, as the model is {'an' if config.kind == 'encoder' else 'a'} {config.kind} alone",
            given=repr(given),
            way_out="Only a decoder with an encoder beside it reads a second text.",
            value=given,
        )
    return 0


def _require_choice(name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        allowed = " or ".join(f'"{choice}"' for choice in get_args(choices))
        raise InputError(name, expected=allowed, given=repr(value), way_out="Choose one of them.", value=value)


def _work(config: Config, tokens: int, sources: int, scored: int) -> Iterator[Work]:
    """Yield the parts of a pass in the order of computation."""
    if config.encoder_layers:
        yield from _attention(config, "encoder", config.encoder_layers, sources, causal=False)
        yield _feed_forward(config, "encoder", config.encoder_layers, sources)
    stack: Stack = "decoder" if config.causal else "encoder"
    yield from _attention(config, stack, config.layers, tokens, causal=config.causal)
    if config.encoder_layers:
        yield from _sublayer(config, (stack, True, config.layers), tokens, sources, permitted=tokens * sources)
    yield _feed_forward(config, stack, config.layers, tokens)
    if config.head != "none":
        dense = config.width**2 if config.head == "masked" else 0
        of_head = scored * (dense + config.width * config.vocabulary)
        yield Work("head", stack, False, 1, of_head, of_head)


def _attention(config: Config, stack: Stack, layers: int, tokens: int, *, causal: bool) -> Iterator[Work]:
    permitted = permitted_pairs(tokens, causal=causal, window=config.window)
    return _sublayer(config, (stack, False, layers), tokens, tokens, permitted=permitted)


def _sublayer(
    config: Config, where: tuple[Stack, bool, int], destinations: int, sources: int, *, permitted: int
) -> Iterator[Work]:
    """Yield the four parts of an attention sublayer, in the order of computation."""
    inner, shared = config.heads * config.head_size, config.kv_heads * config.head_size
    projected = config.width * (destinations * inner + 2 * sources * shared)
    yield Work("projections", *where, projected, projected)
    for part in PAIR_WORK:
        yield Work(part, *where, permitted * inner, destinations * sources * inner)
    put_out = destinations * inner * config.width
    yield Work("output", *where, put_out, put_out)


def _feed_forward(config: Config, stack: Stack, layers: int, tokens: int) -> Work:
    numbers = tokens * config.width * config.feed_forward * (3 if config.gated else 2)
    return Work("feed_forward", stack, False, layers, numbers, numbers)


def _twice_pairs(causal: bool, window: int | None, *, past_window: bool) -> Quadratic:
    """Return twice the number of permitted pairs as a polynomial in n, for n up to the window or from it on.

    Twice, since n (n + 1) / 2 has halves. Of a window of w keys the first w - 1 rows are short, by w (w - 1) / 2 pairs
    in all; without `causal` the last ones are too.
    """
    if past_window and window is not None:
        both = 1 if causal else 2
        return 0, 2 * (both * (window - 1) + 1), -both * window * (window - 1)
    return (1, 1, 0) if causal else (2, 0, 0)


def _difference(config: Config, pairs: Pairs, slope: int, constant: int, *, past_window: bool) -> Quadratic:
    """Return twice pair work minus twice a line, as a polynomial in the n of both texts."""
    every: Quadratic = (2, 0, 0)
    within = (
        [every, every]
        if pairs == "all"
        else [_twice_pairs(causal, config.window, past_window=past_window) for causal in (config.causal, False)]
    )
    stacks = [(config.layers, within[0])]
    if config.encoder_layers:  # its own self-attention, and cross-attention, which knows no window
        stacks += [(config.encoder_layers, within[1]), (config.layers, every)]
    a_pair = len(PAIR_WORK) * config.heads * config.head_size
    a, b, c = (a_pair * sum(layers * pair[power] for layers, pair in stacks) for power in range(3))
    return a, b - 2 * slope, c - 2 * constant


def _line(config: Config, against: Against, last_only: bool) -> tuple[int, int]:
    """Return slope and constant of what pair work is compared with: all of it is linear in n."""
    one, two = (
        cost.multiply_adds("feed_forward")
        if against == "feed_forward"
        else cost.multiply_adds() - cost.multiply_adds(*PAIR_WORK)
        for cost in (count(config, tokens, last_only=last_only) for tokens in (1, 2))
    )
    return two - one, 2 * one - two


def _first_above(quadratic: Quadratic) -> int | None:
    """Return the smallest n from 1 up at which a n^2 + b n + c > 0, with a >= 0 >= c, and so for every n behind it.

    In whole numbers: 2 a n + b > sqrt(b^2 - 4 a c) where the left side is at least isqrt(b^2 - 4 a c) + 1.
    """
    a, b, c = quadratic
    if a == 0:
        return max(1, -c // b + 1) if b > 0 else None
    root = isqrt(b * b - 4 * a * c)
    return max(1, -((b - root - 1) // (2 * a)))


def _norm(config: Config) -> int:
    return config.width if config.norm == "rms" else 2 * config.width


def _stack_parameters(config: Config, layers: int, *, cross: bool) -> int:
    """Return the parameters of a stack, its embedding of the vocabulary left out."""
    norm = _norm(config)
    attention = _attention_parameters(config) + norm
    block = attention * (2 if cross else 1) + _feed_forward_parameters(config) + norm
    positions = config.context * config.width if config.positions == "learned" else 0
    norms = norm * (int(config.embedding_norm) + int(config.final_norm))
    return layers * block + positions + config.segments * config.width + norms


def _attention_parameters(config: Config) -> int:
    inner, shared = config.heads * config.head_size, config.kv_heads * config.head_size
    numbers = config.width * (2 * inner + 2 * shared)  # queries and the output; keys and values
    numbers += inner + 2 * shared if config.attention_bias else 0
    numbers += config.width if config.output_bias else 0
    return numbers + (2 * config.head_size if config.query_key_norm else 0)


def _feed_forward_parameters(config: Config) -> int:
    inner = 2 if config.gated else 1  # matrices that lead in; one leads out
    biases = inner * config.feed_forward + config.width if config.mlp_bias else 0
    return (inner + 1) * config.width * config.feed_forward + biases
