"""The real model, SmolLM2-135M-Instruct, against transformers' Llama on the very same weights."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import wherefrom
from wherefrom.attention import Mask
from wherefrom.model import store
from wherefrom.model.attention_function import Site, plain
from wherefrom.model.transformer import Transformer
from wherefrom.questions import window_of_weights
from wherefrom.recording import Call

SHORT = (
    "When Mary and John went to the store, John gave a drink to",
    "The capital of France is Paris. The capital of Italy is",
    "The bat flew out of the cave at dusk. The bat broke when he hit the ball.",
    "a",
    " ",
    "\n",
    "The",
    "!!!!!!!!!!!!",
    "the the the the the the the the the the the the the the the the",
    "one two three one two three one two three one two",
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y",
    "xqzv kjwp bvnm ghty rrtl",
    "UPPER CASE SHOUTING AND lower case whispering",
    "    four blanks before, two after  ",
    "tabs\tand\ttabs\t\tagain",
    "line one\nline two\n\n\nline three\r\nline four",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }",
    "SELECT name, COUNT(*) FROM readers WHERE year > 1999 GROUP BY",
    '{"name": "Ada", "born": 1815, "tags": ["maths", "engines"], "next": null}',
    "<html><body><p class='a'>text</p></body>",
    '#include <stdio.h>\nint main(void) { printf("%d\\n", 42);',
    "git commit -m 'fix: off by one' && git push",
    "E = mc^2, and therefore m =",
    "12345 + 67890 = 80235; 3.14159265358979",
    "∑_{i=1}^{n} i = n(n+1)/2, ∀ n ∈ ℕ; ∫₀¹ x² dx = ⅓",
    "If x + 3 = 10 then x = 7. If y - 4 = 9 then y =",
    "2, 3, 5, 7, 11, 13, 17, 19, 23,",
    "中文字符需要很多个词元，因为词表很小。",
    "東京は日本の首都です。パリはフランスの",
    "서울은 대한민국의 수도이다.",
    "שלום עולם, מה שלומך היום?",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "mixed שלום and مرحبا and English",
    "Привет, мир! Столица Франции —",
    "Η πρωτεύουσα της Γαλλίας είναι",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "🙂🙃 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ❤️ 🎉🎉🎉",
    "e\u0301 and é, ﬁ and fi, Ǆ and DŽ",
    "naïve café — “quoted” … ‘single’ – dash",
    "<|im_start|>user\nWhat is the capital of Spain?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>",
    "Roses are red, violets are blue, sugar is sweet, and so are",
    "Q: Who wrote Hamlet?\nA: William Shakespeare\nQ: Who wrote Faust?\nA:",
    "He said: \"She said: 'They said: nothing.'\"",
    "https://example.org/a/b?c=d&e=f#g and someone@example.org",
    "Dear Sir or Madam,\n\nI am writing to complain about the weather of last",
)
CLAUSES = (
    "In the year {n} a ship of {m} sailors left the harbour of Genoa with salt and oil. ",
    "def step_{n}(x):\n    return x * {m} + {n}\n\n",
    "第{n}章：船长写下了{m}个名字。\n",
    "The librarian counted {m} volumes on shelf {n}, and found one of them missing. ",
    "Σ x_{n} = {m}.5; y({n}) ≤ {m}² 🙂\n",
    "«Where did you see the other {m}?» asked Anna; nobody in room {n} knew. ",
    "| {n} | {m} | שלום | مرحبا |\n",
)


def varied(clauses: int) -> str:
    """A long text in which no stretch is the repetition of another."""
    return "".join(CLAUSES[n % 7].format(n=n + 3, m=(n * n * 31 + 17) % 97) for n in range(clauses))


PROMPTS = (*SHORT, varied(34), varied(88))
ALWAYS = (*range(0, 48, 6), 48)
"""Every kind of prompt, and a long one."""
WATCHED = (SHORT[0], SHORT[16], SHORT[28], SHORT[38], SHORT[41])


@pytest.fixture(scope="module")
def llama(smollm: wherefrom.LanguageModel) -> Iterator[transformers.LlamaForCausalLM]:
    transformers.utils.logging.disable_progress_bar()
    model = transformers.LlamaForCausalLM.from_pretrained(
        store.default_folder(), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    with torch.inference_mode():
        yield model


@pytest.fixture(scope="module")
def eager(llama: transformers.LlamaForCausalLM) -> Iterator[transformers.LlamaForCausalLM]:
    llama.set_attn_implementation("eager")
    yield llama
    llama.set_attn_implementation("sdpa")


def ids_of(model: wherefrom.LanguageModel, text: str) -> Tensor:
    return torch.tensor([model.tokenizer.encode(text).ids])


def test_fifty_different_prompts(smollm: wherefrom.LanguageModel) -> None:
    lengths = [ids_of(smollm, prompt).shape[1] for prompt in PROMPTS]
    assert len(set(PROMPTS)) == 50
    assert 600 <= lengths[-2] <= 800
    assert 1900 <= lengths[-1] <= 2100
    assert max(lengths[:-2]) <= 120


@pytest.mark.parametrize(
    "number",
    [number if number in ALWAYS else pytest.param(number, marks=pytest.mark.long) for number in range(len(PROMPTS))],
)
def test_logits_are_those_of_transformers(
    smollm: wherefrom.LanguageModel, llama: transformers.LlamaForCausalLM, number: int
) -> None:
    ids = ids_of(smollm, PROMPTS[number])
    theirs = llama(ids).logits[0]
    stream = smollm.transformer.stream(ids)[0]
    for rows in torch.arange(len(stream)).split(256):  # logits of a long text are large
        ours, right = smollm.transformer.logits(stream[rows]), theirs[rows]
        assert float((ours - right).abs().max()) <= 1e-3
        chosen = right.gather(-1, ours.argmax(dim=-1, keepdim=True))[:, 0]
        assert float((right.max(dim=-1).values - chosen).max()) <= 1e-3  # of two that are this close, either may lead
    assert int(ours[-1].argmax()) == int(theirs[-1].argmax())


def test_ids_are_those_of_transformers(smollm: wherefrom.LanguageModel) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(store.default_folder())
    for prompt in PROMPTS:
        assert list(smollm.tokenizer.encode(prompt).ids) == theirs(prompt)["input_ids"]


@pytest.mark.parametrize("text", WATCHED)
def test_weights_are_those_of_eager_attention(
    smollm: wherefrom.LanguageModel, eager: transformers.LlamaForCausalLM, text: str
) -> None:
    recording = wherefrom.record(smollm, text)
    n = len(recording)
    assert n <= 120
    attentions = eager(torch.tensor([recording.tokens.ids]), output_attentions=True).attentions
    assert len(recording.calls) == len(attentions) == 30
    for call, theirs in zip(recording.calls, attentions, strict=True):
        for head in range(9):
            ours = window_of_weights(call, head, range(n), range(n))
            assert abs(ours - theirs[0, head].numpy()).max() <= 1e-5


@pytest.mark.parametrize("text", [SHORT[16], SHORT[41], SHORT[44]])
def test_greedy_text_is_that_of_transformers(
    smollm: wherefrom.LanguageModel, llama: transformers.LlamaForCausalLM, text: str
) -> None:
    ids = ids_of(smollm, text)
    theirs = llama.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
    assert list(wherefrom.generate(smollm, text, max_tokens=20).ids) == theirs[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def pair(smollm: wherefrom.LanguageModel) -> tuple[wherefrom.Recording, wherefrom.Recording]:
    """A text that was written token by token with a cache, and the same text read in one pass."""
    written = wherefrom.record_generation(smollm, SHORT[44], max_tokens=20, stop_ids=())
    return written, wherefrom.record(smollm, written.tokens, predictions="all")


def weights_of(transformer: Transformer, ids: Tensor) -> list[Tensor]:
    """The weights [H, T, T] of every layer in plain lines, in the number format of the model."""
    seen = []

    def watch(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        scores = scale * (q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2))
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        seen.append(torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1)[0])
        return plain(q, k, v, mask=mask, scale=scale, site=site)

    transformer(ids, attention=watch, last_only=True)
    return seen


def test_weights_are_as_right_as_those_of_eager_attention(
    smollm: wherefrom.LanguageModel, eager: transformers.LlamaForCausalLM
) -> None:
    """In a text of many scripts float32 itself is off by 1e-5 and more in the upper layers; double precision is judge.

    The lse kept is the kernel's, of float32 scores: one rounding of the largest score comes on top.
    """
    recording = wherefrom.record(smollm, varied(4))
    n, ids = len(recording), torch.tensor([recording.tokens.ids])
    page = weights_of(deepcopy(smollm.transformer).double(), ids)
    theirs = eager(ids, output_attentions=True).attentions
    for call, eagerly, right in zip(recording.calls, theirs, page, strict=True):
        windows = [window_of_weights(call, head, range(n), range(n)).filled(np.nan) for head in range(9)]
        usual = float((eagerly[0].double() - right).abs().max())
        assert usual <= 1e-4
        largest = call.scale * np.linalg.norm(call.q, axis=-1).max() * np.linalg.norm(call.k, axis=-1).max()
        assert np.abs(np.stack(windows) - right.numpy()).max() <= 3 * usual + np.finfo(np.float32).eps * largest


def arrays(call: Call) -> tuple[np.ndarray, ...]:
    return call.q, call.k, call.v, call.lse


def test_a_recorded_generation_is_one_map(pair: tuple[wherefrom.Recording, wherefrom.Recording]) -> None:
    written, whole = pair
    n = len(whole)
    assert written.written_from == n - 20
    assert written.bytes == whole.bytes == wherefrom.forecast_bytes(whole.model, n)
    for ours, theirs in zip(written.calls, whole.calls, strict=True):
        assert (ours.layer, ours.mask, len(ours.checks)) == (theirs.layer, theirs.mask, 21)
        for one, other in zip(arrays(ours), arrays(theirs), strict=True):
            assert one.shape == other.shape
            assert abs(one - other).max() <= 1e-4  # 40 float32 roundings of the largest of these numbers, about 20
        for head in range(9):
            weights = [window_of_weights(call, head, range(n), range(n)) for call in (ours, theirs)]
            assert abs(weights[0] - weights[1]).max() <= 1e-4


def test_a_recorded_generation_predicts_the_same(pair: tuple[wherefrom.Recording, wherefrom.Recording]) -> None:
    written, whole = pair
    first = len(whole) - 21
    assert [kept.position for kept in written.predictions] == list(range(first, len(whole)))
    for kept in written.predictions:
        right = whole.prediction(kept.position)
        assert (kept.ids[0], kept.next_id) == (right.ids[0], right.next_id)
        assert kept.log_probabilities == pytest.approx(right.log_probabilities, abs=1e-3)
        if kept.next_id is not None:
            assert kept.ids[0] == kept.next_id == whole.tokens.ids[kept.position + 1]
