"""The shape of a model (floor 2): every choice that the lesson names, each a switch of one value.

Takes errors and checks from below. Gives `Config` to the transformer, which computes what it says, and to the layouts,
which read it from a checkpoint's config.json and write it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from wherefrom.checks import check_items, whole
from wherefrom.errors import InputError

Positions = Literal["rotary", "learned", "sinusoidal"]
Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Head = Literal["linear", "masked", "none"]
Kind = Literal["decoder", "encoder", "encoder-decoder"]
SWITCHES = (
    *("causal", "norm_first", "final_norm", "gated", "attention_bias", "output_bias", "mlp_bias", "query_key_norm"),
    *("embedding_norm", "head_bias", "tied", "shared_embedding"),
)
WAY_OUT = "Change it where the configuration is made."
MOST_LAYERS = 10_000
MOST = 2**30
"""Of any other size: two of them multiplied, in bytes, still fit into the 64 bits that torch counts with."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a transformer is made of. The defaults of the switches are those of the Llama family.

    Attributes:
        architecture: whose checkpoint layout it has: "llama", "mistral", "qwen3", "gpt2", "bert", "marian", or
            "wherefrom", which can hold any combination of the switches.
        layers: blocks of attention and feed-forward; of the decoder, where there is an encoder too.
        encoder_layers: blocks of an encoder that the decoder reads through cross-attention; 0 for a single stack.
        width: numbers that stand for a token between blocks, M.
        heads: query heads of a layer, H.
        kv_heads: key and value heads, K; H / K query heads share one.
        head_size: numbers of a query or key, D; even where positions are rotary, since the rotation turns pairs.
        feed_forward: inner width of the feed-forward part.
        vocabulary: rows of the embedding, N.
        context: the most tokens that the model was made for.
        causal: whether a destination reads only what came before it; an encoder alone does not.
        positions: how it knows order: "rotary" (q and k turned), "learned" (a row a position) or "sinusoidal".
        rope_base: base of the rotation's wavelengths.
        window: how many keys a destination reads at most, its own included, on each side of it that it may read; None
            is no limit.
        norm: "rms" (RMSNorm) or "layer" (LayerNorm, with bias).
        norm_first: each sublayer reads a normalised stream (pre-norm, GPT-2); else each sum is normalised (post-norm,
            the original).
        final_norm: whether the stream after the last block is normalised once more.
        norm_epsilon: added to the mean square, or the variance, before its root.
        activation: the nonlinearity of the feed-forward part; "gelu_tanh" is GPT-2's approximation.
        gated: two inner products, one of them through the activation (SwiGLU with "silu"); else one.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the output projection of attention has one.
        mlp_bias: whether the feed-forward matrices have biases.
        query_key_norm: each head's query and key is RMS-normalised before it is rotated (Qwen3).
        embedding_scale: what a token's row is multiplied by; sqrt(M) in the original.
        embedding_norm: whether the embedded tokens are normalised (BERT).
        segments: rows of a segment embedding (BERT); every token is of segment 0.
        head: "linear" to the vocabulary, "masked" (BERT's: dense, activation, norm, then the vocabulary), or "none".
        head_bias: whether the logits have a bias.
        tied: whether the embedding is the output matrix too.
        shared_embedding: whether encoder and decoder have one embedding.
        bos_id: the mark a text begins with, if any.
        eos_ids: the marks a text may end with.
        never_ids: tokens that are never written, however likely (Marian's padding); their logits stay as they are.
        start_id: what a decoder with an encoder begins with.

    Raises:
        InputError: a number or a choice that makes no sense, or two that do not go together.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    context: int
    encoder_layers: int = 0
    causal: bool = True
    positions: Positions = "rotary"
    rope_base: float = 10_000.0
    window: int | None = None
    norm: Norm = "rms"
    norm_first: bool = True
    final_norm: bool = True
    norm_epsilon: float = 1e-5
    activation: Activation = "silu"
    gated: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    segments: int = 0
    head: Head = "linear"
    head_bias: bool = False
    tied: bool = True
    shared_embedding: bool = True
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    never_ids: tuple[int, ...] = ()
    start_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "head_size", "feed_forward", "vocabulary", "context"):
            self._keep_whole(name, least=1)
        for name in ("encoder_layers", "segments"):
            self._keep_whole(name, least=0)
        if self.window is not None:
            self._keep_whole("window", least=1, way_out="None is no limit.")
        for name, choices in (("positions", Positions), ("norm", Norm), ("activation", Activation), ("head", Head)):
            _require(name, getattr(self, name), get_args(choices), "one of " + ", ".join(get_args(choices)))
        for name in SWITCHES:
            _require(name, type(getattr(self, name)), (bool,), "True or False", given=getattr(self, name))
        for name in ("rope_base", "norm_epsilon", "embedding_scale"):
            number = getattr(self, name)
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            _require(name, is_number and 0 < number < float("inf"), (True,), "a number above 0", given=number)
        self._check_ids()
        self._check_together()

    def _keep_whole(self, name: str, *, least: int, way_out: str = WAY_OUT) -> None:
        """Keep a number as a plain int: numpy's own cannot be written to a config.json."""
        number = whole(f"the configuration's {name}", getattr(self, name), least=least, way_out=way_out)
        most = MOST_LAYERS if "layers" in name else MOST
        if number > most:
            given, expected = f"{number}", f"at most {most:,}"
            raise InputError(f"the configuration's {name}", expected=expected, given=given, way_out=way_out, field=name)
        object.__setattr__(self, name, number)  # the class is frozen for everyone else

    def _check_ids(self) -> None:
        way_out = "An id is a token's number in the tokenizer; None, or (), is none."
        for name in ("eos_ids", "never_ids"):
            what = f"the configuration's {name}"
            ids = check_items(what, getattr(self, name), expected="token ids", way_out=way_out)
            plain = tuple(whole(f"an id among {what}", number, least=0, way_out=way_out) for number in ids)
            object.__setattr__(self, name, plain)
        beyond = [number for number in self.never_ids if number >= self.vocabulary]
        _require("never_ids", beyond, ([],), f"token ids below vocabulary, {self.vocabulary}", given=self.never_ids)
        left = len(set(self.never_ids)) < self.vocabulary
        _require("never_ids", left, (True,), "some token that may be written", given="all of them")
        for name in ("bos_id", "start_id"):
            if getattr(self, name) is not None:
                self._keep_whole(name, least=0, way_out=way_out)

    def _check_together(self) -> None:
        """Refuse choices that do not go together."""
        rest = self.heads % self.kv_heads
        _require("kv_heads", rest, (0,), f"a divisor of heads, {self.heads}", given=self.kv_heads)
        fits, most = self.heads * self.head_size <= MOST, f"at most {MOST:,} in all {self.heads} heads"
        _require("head_size", fits, (True,), most, given=self.head_size)
        if self.positions == "rotary":
            odd = "an even number, since the rotation turns pairs"
            _require("head_size", self.head_size % 2, (0,), odd, given=self.head_size)
        if self.head == "none":
            for name in ("tied", "head_bias"):
                _require(name, getattr(self, name), (False,), "False where there is no head")
        if self.encoder_layers:
            _require("causal", self.causal, (True,), "True for a decoder that reads an encoder")
            reads = f"a token id below {self.vocabulary}, with which the decoder begins"
            _require("start_id", self.start_id, range(self.vocabulary), reads)

    @property
    def kind(self) -> Kind:
        """What the model is: a decoder, an encoder, or both."""
        return "encoder-decoder" if self.encoder_layers else "decoder" if self.causal else "encoder"

    @classmethod
    def decoder(
        cls,
        *,
        layers: int,
        width: int,
        heads: int,
        vocabulary: int,
        context: int,
        style: Literal["llama", "gpt2"] = "llama",
        **changes: Any,
    ) -> Config:
        """Return the shape of a language model that reads from left to right.

        Args:
            layers: blocks.
            width: numbers that stand for a token.
            heads: heads of a layer; a head's size is width / heads unless `head_size` is given.
            vocabulary: how many tokens there are.
            context: the most tokens that it reads.
            style: "llama" (rotary positions, RMSNorm, SwiGLU, no biases) or "gpt2" (learned positions, LayerNorm, GELU,
                biases); both pre-norm, with the embedding tied to the output.
            changes: any other field of `Config`.

        Raises:
            InputError: sizes that do not go together.
        """
        _require("style", style, ("llama", "gpt2"), "llama or gpt2")
        sized = _sized(style, layers, width, heads, changes)
        own: dict[str, Any] = {"feed_forward": 4 * width}
        if style == "gpt2":
            biases = {"attention_bias": True, "output_bias": True, "mlp_bias": True}
            own |= {"positions": "learned", "norm": "layer", "activation": "gelu_tanh", "gated": False, **biases}
        else:  # three matrices of 8/3 of the width hold as many numbers as two of 4 times the width
            own["feed_forward"] = 8 * -(-width // 3)
        return cls(**sized, vocabulary=vocabulary, context=context, **(own | changes))

    @classmethod
    def encoder(cls, *, layers: int, width: int, heads: int, vocabulary: int, context: int, **changes: Any) -> Config:
        """Return the shape of BERT: bidirectional, post-norm, learned positions, GELU, a head that fills in masked
        tokens.

        Args:
            layers: blocks.
            width: numbers that stand for a token.
            heads: heads of a layer; a head's size is width / heads unless `head_size` is given.
            vocabulary: how many tokens there are.
            context: the most tokens that it reads.
            changes: any other field of `Config`; with head="none" nothing is tied to the embedding.

        Raises:
            InputError: sizes that do not go together.
        """
        sized = _sized("bert", layers, width, heads, changes)
        own: dict[str, Any] = {
            "feed_forward": 4 * width,
            "causal": False,
            "positions": "learned",
            "norm": "layer",
            "norm_first": False,
            "final_norm": False,
            "norm_epsilon": 1e-12,
            "activation": "gelu",
            "gated": False,
            "attention_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "embedding_norm": True,
            "segments": 2,
            "head": "masked",
            "head_bias": changes.get("head") != "none",
            "tied": changes.get("head") != "none",
        }
        return cls(**sized, vocabulary=vocabulary, context=context, **(own | changes))

    @classmethod
    def encoder_decoder(
        cls,
        *,
        layers: int,
        width: int,
        heads: int,
        vocabulary: int,
        context: int,
        start_id: int,
        **changes: Any,
    ) -> Config:
        """Return the shape of the original Transformer (Vaswani et al. 2017, section 3): post-norm, ReLU, sinusoidal
        positions.

        The paper's base model is layers=6, width=512, heads=8 (of 64), feed_forward=2048. One matrix embeds both sides
        and is the output matrix too, its rows multiplied by sqrt(width) where they embed (section 3.4). No dropout.

        Args:
            layers: blocks of the decoder, and of the encoder unless `encoder_layers` is given.
            width: numbers that stand for a token.
            heads: heads of a layer.
            vocabulary: how many tokens there are, on both sides.
            context: the most tokens of either side.
            start_id: the token that the decoder begins with.
            changes: any other field of `Config`.

        Raises:
            InputError: sizes that do not go together.
        """
        sized = _sized("wherefrom", layers, width, heads, changes)
        own: dict[str, Any] = {
            "encoder_layers": layers,
            "feed_forward": 4 * width,
            "positions": "sinusoidal",
            "norm": "layer",
            "norm_first": False,
            "final_norm": False,
            "activation": "relu",
            "gated": False,
            "attention_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "embedding_scale": width**0.5,
            "start_id": start_id,
        }
        return cls(**sized, vocabulary=vocabulary, context=context, **(own | changes))


def _sized(architecture: str, layers: int, width: int, heads: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes that follow from others, each of which `changes` may give."""
    heads = whole("the configuration's heads", heads, least=1, way_out=WAY_OUT)
    width = whole("the configuration's width", width, least=1, way_out=WAY_OUT)
    if "head_size" not in changes:
        _require(
            "width", width % heads, (0,), f"a multiple of the {heads} heads, as head_size is not given", given=width
        )
    sizes = {"kv_heads": heads, "head_size": width // heads, "architecture": architecture}
    given = {"layers": layers, "width": width, "heads": heads}
    return given | {name: changes.pop(name, value) for name, value in sizes.items()}


def _require(name: str, value: Any, choices: Any, expected: str, **shown: Any) -> None:
    """Refuse a value that is not among the choices; an error shows it, or `given` where that is something else."""
    if value not in choices:
        given = repr(shown.get("given", value))
        raise InputError(f"the configuration's {name}", expected=expected, given=given, way_out=WAY_OUT, field=name)
