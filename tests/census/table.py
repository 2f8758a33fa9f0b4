"""The census in words, and as the page docs/architectures.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from .cases import WEIGHTS_AGREE, Result
from .inputs import SOUND, VISION

PAGE = "docs/architectures.md"
KINDS = {
    "softmax": "its own softmax",
    "scaled_dot_product_attention": "`F.scaled_dot_product_attention`",
    "multi_head_attention": "`nn.MultiheadAttention`",
}
HEAD = """# Which transformers models can be recorded

Written by `python -m tests.census --table` with transformers {transformers}, torch {torch}. Do not edit.

Of each config type that transformers has, a small model with random weights is made (width 32, two layers or as many
as show every kind of layer, windows of 4 keys) and run in float32 on a text of 11 tokens or more, an image, or a sound,
and where it takes two texts, on two of different lengths with padding on the left and on the right. What is recorded of
it is compared with its eager attention, call by call: the weights are built again in double precision from q, k and
log-sum-exp, the mask, the bias, the softcap and the sinks, and held against those that the eager function returned.
The same is done with sdpa, if the model supports it, and the outputs of the recorded model are held against its own.

{counts}

Of a model that is not here, or of your own, ask by running it once:

```python
>>> import torch
>>> from transformers import AutoModel, LlamaConfig
>>> from wherefrom.capture.huggingface.interface import watched
>>> _ = torch.manual_seed(0)
>>> config = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
>>> model = AutoModel.from_config(config).eval()
>>> seen = []
>>> def attention(given):
...     seen.append((given.name, given.readable.masks[0].describe()))
...     return given.attend().output
>>> with watched(model, attention) as watch, torch.no_grad():
...     _ = model(torch.tensor([[5, 6, 7, 8]]))
>>> seen
[('layers.0.self_attn', 'causal'), ('layers.1.self_attn', 'causal')]
>>> watch.gaps
()

```

A recording says by itself which attention it does not hold ("passes by" in the tables: its kind, and the module's
path).
"""
SECTIONS = {
    "exact": (
        "Recorded exactly",
        "Every weight agrees within {agree:.0e}. Given: what it was run on; a model of text and images that was given"
        " text alone was recorded as far as that. Calls: recorded, and executions of eager attention in the same pass.",
        ("type", "class", "given", "calls", "largest difference of a weight", "passes by", "remarks"),
    ),
    "unsound": (
        "Recorded, without a sound reference",
        "Their eager attention cannot be a reference, for the reason given. The output of the recorded model is that of"
        " sdpa, or, where only the weights that eager attention returns are wrong, of both.",
        ("type", "class", "given", "calls", "passes by", "why"),
    ),
    "failed": (
        "Refused, or not exact",
        "Refused by a sentence that says why, or wrong.",
        ("type", "class", "eager calls", "what"),
    ),
    "past": (
        "Not through the interface",
        "They run, and compute attention in a way that no function of ours can see. Tools for them need hooks.",
        ("type", "class", "passes by"),
    ),
    "without": (
        "No attention",
        "They run, and no attention is found: convolutions, recurrences, Fourier transforms.",
        ("type", "class"),
    ),
    "missing": (
        "Not tried",
        "No small model could be made, or run, here; the first reason that was met.",
        ("type", "why"),
    ),
}


def kind_of(result: Result) -> str:
    """Return which section of the page a result belongs to."""
    if result.missing:
        return "missing"
    if result.failure:
        return "failed"
    if not result.calls:
        return "past" if result.past else "without"
    return "unsound" if result.unsound else "exact"


def cells(result: Result) -> tuple[str, ...]:
    """Return a result's row of the page."""
    calls, past = f"{result.calls} / {result.eager}", _past(result.past)
    name, part = f"`{result.type_name}`", f"`{result.part}`"
    return {
        "exact": (name, part, _given(result), calls, f"{result.weights or 0:.0e}", past, result.note),
        "unsound": (name, part, _given(result), calls, past, result.unsound),
        "failed": (name, part, str(result.eager), _plain(result.failure)),
        "past": (name, part, past),
        "without": (name, part),
        "missing": (name, _plain(result.missing)),
    }[kind_of(result)]


def row(values: Iterable[str]) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(values) + " |"


def page(results: Sequence[Result]) -> str:
    """Return the page."""
    parts = [head(results)]
    for kind, (title, words, columns) in SECTIONS.items():
        own = [result for result in results if kind_of(result) == kind]
        if own:
            parts.append(f"## {title} ({len(own)})\n\n{words.format(agree=WEIGHTS_AGREE)}\n")
            parts.append(
                "\n".join([row(columns), row("---" for _ in columns), *(row(cells(one)) for one in own)]) + "\n"
            )
    return "\n".join(parts)


def head(results: Sequence[Result]) -> str:
    """Return what stands above the tables."""
    return HEAD.format(transformers=version("transformers"), torch=_release("torch"), counts=counted(results))


def counted(results: Sequence[Result]) -> str:
    """Return in words how many of the types are what."""
    of = Counter(kind_of(result) for result in results)
    types = len({result.type_name for result in results})
    exact = [result for result in results if kind_of(result) == "exact"]
    ran = sum(of.values()) - of["missing"]
    with_gaps = sum(bool(result.past) for result in exact)
    padded = sum(any(name.startswith("padded") for name in result.inputs) for result in exact)
    worst = max((result.weights or 0.0 for result in exact), default=0.0)
    return (
        f"**{of['exact']} model classes are exact within {WEIGHTS_AGREE:.0e}**, the worst by {worst:.0e}; {padded} of"
        f" them with padding too, and in {with_gaps} of them other attention passes by.\n"
        f"{of['unsound']} more have no sound reference, {of['failed']} are refused or wrong, in {of['past']} all"
        f" attention passes by, and {of['without']} have none.\n"
        f"That is {ran} of {sum(of.values())} classes of {types} config types; {of['missing']} could not be tried here."
    )


def line(result: Result) -> str:
    """Return a result in one line."""
    what = " ".join(cells(result)[2:]) if not result.missing else result.missing
    return f"{kind_of(result)}: {result.type_name} {result.part} {what} ({', '.join(result.inputs)})"


def summary(results: Sequence[Result]) -> str:
    """Return the counts, and what failed or could not be tried."""
    lines = [line(result) for kind in ("failed", "missing") for result in results if kind_of(result) == kind]
    return "\n".join([*lines, "", counted(results)])


def _given(result: Result) -> str:
    """Return in words what a model was run on."""
    names = set(result.inputs)
    words = {
        "text": bool(names & {"input_ids", "decoder_input_ids"}),
        "image": bool(names & set(VISION)) or "grid_thw" in names,
        "sound": bool(names & set(SOUND)),
    }
    said = [word for word, there in words.items() if there] or ["numbers"]
    return ", ".join(said) + " (padded too)" * any(name.startswith("padded") for name in names)


def _past(past: dict[str, str]) -> str:
    """Return attention that passes by: each kind with the first module, and how many more."""
    said = []
    for kind, words in KINDS.items():
        names = [name for name, what in past.items() if what == kind]
        if names:
            said.append(f"{words}: {names[0] or 'the model'}" + f" and {len(names) - 1} more" * (len(names) > 1))
    return "; ".join(said)


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("<", "&lt;").replace("\n", " ")


def _release(package: str) -> str:
    return version(package).split("+")[0]
