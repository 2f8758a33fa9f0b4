"""What passes cost, as text: the numbers of the answer, in words that fit the model, within 80 columns."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import wherefrom
from wherefrom.errors import InputError
from wherefrom.evidence.cost import cost
from wherefrom.evidence.costed import Cost, Measured
from wherefrom.model.config import Config
from wherefrom.views.cost import cost_table, number, part_table, size

SMOLLM = Config.decoder(layers=30, width=576, heads=9, kv_heads=3, feed_forward=1536, vocabulary=49152, context=8192)
GPT2 = Config.decoder(style="gpt2", layers=12, width=768, heads=12, vocabulary=50257, context=1024)
BERT = Config.encoder(layers=12, width=768, heads=12, vocabulary=30522, context=512)
ORIGINAL = Config.encoder_decoder(layers=6, width=512, heads=8, vocabulary=37000, context=512, start_id=0)
HUGE = Config.decoder(layers=126, width=16384, heads=128, vocabulary=10**6, context=10**8, feed_forward=53248)
WINDOW = replace(GPT2, window=100)
EVERY = {
    "smollm": SMOLLM,
    "gpt2": GPT2,
    "bert": BERT,
    "original": ORIGINAL,
    "huge": HUGE,
    "window": WINDOW,
    "encoder, window": replace(BERT, window=16),
    "translator, window": replace(ORIGINAL, window=16, encoder_layers=120),
    "no head": Config.encoder(layers=1, width=2, heads=1, vocabulary=2, context=1, head="none", head_bias=False),
}


def flat(text: str) -> str:
    return " ".join(text.split())


def timed(config: Config, ratios: dict[int, float], rest: float = 10.0) -> Cost:
    """Attention takes `ratio` seconds, the feed-forward one, everything else `rest`; one run took twice as long."""
    found = cost(config, list(ratios))
    lines = []
    for at in found.lengths:
        seconds = ratios[at.tokens] + 1 + rest
        runs = (seconds, 2 * seconds, seconds)
        lines.append(replace(at, measured=Measured(seconds, ratios[at.tokens], 1.0, runs)))
    return replace(found, lengths=tuple(lines), threads=2)


SMOLLM_TABLE = """\
What one pass of SmolLM2-135M-Instruct costs
30 layers, width 576, 9 heads of 64 on 3 of keys and values, feed-forward 1,536,
vocabulary 49,152; 134,515,008 parameters, 538 MB

Counted
         multiply-adds   ---- share ----  ---------- bytes -----------
tokens  in all  a layer  pairs  feed-fwd    n x n  recording  kv cache
   512   58.9G    1.96G   7.7%     69.2%   283 MB    59.5 MB   23.6 MB
 2,048    290G    9.66G  25.0%     56.2%  4.53 GB     238 MB   94.4 MB
 8,192   2.03T    67.7G  57.1%     32.1%  72.5 GB     953 MB    377 MB

multiply-adds  each is one product and one sum, 2 FLOPs; of one text, with the
               logits of its last position. A layer: attention and feed-forward.
pairs          the share of pair work, scores q·k and weighted sums of v: the
               permitted pairs, n(n+1)/2.
n x n          the weights of all heads and layers (4 bytes each), if an
               implementation forms and keeps them; a fused kernel does not.
recording      what a recording of the pass takes, exactly.
kv cache       keys and values that are kept while writing.

Pair work overtakes the feed-forward from 4,608 tokens on, and everything else
together from 6,144 on. With all n² pairs computed: 2,305 and 3,073. A fused
causal kernel skips about half of them, those above the diagonal. The model
reads at most 8,192 tokens.

The number of pairs grows with n²; no other work grows faster than n. That says
how fast pair work grows, not how large it is: the square alone does not mean
that attention dominates at short lengths, since its constant decides from where
on. Here, at 512 tokens, pair work is 7.7% of the multiply-adds and the
feed-forward 69.2%.
"""


def test_the_table_of_smollm(smollm: wherefrom.LanguageModel) -> None:
    assert cost_table(cost(smollm, (512, 2048, 8192))) == SMOLLM_TABLE


def test_the_parts_of_smollm() -> None:
    found = cost(SMOLLM, (2048, 7))
    assert part_table(found, 2048) == (
        "Part by part at 2,048 tokens, multiply-adds\n"
        "part                   layers  one layer  all layers   share  all n x n\n"
        "queries, keys, values      30      1.13G       34.0G   11.7%      34.0G\n"
        "scores q·k                 30      1.21G       36.3G   12.5%      72.5G\n"
        "weighted sums of v         30      1.21G       36.3G   12.5%      72.5G\n"
        "output projection          30       679M       20.4G    7.0%      20.4G\n"
        "feed-forward               30      5.44G        163G   56.2%       163G\n"
        "vocabulary head                                28.3M   <0.1%      28.3M\n"
        "in all                                          290G  100.0%       362G\n"
        "\n"
        "all n x n: all layers, with every pair computed; the columns before it count the\n"
        "permitted pairs, n(n+1)/2.\n"
    )
    assert part_table(found).startswith("Part by part at 7 tokens,")  # the last of them
    assert part_table(cost(GPT2, [1])).startswith("Part by part at 1 token, m")


def test_the_parts_of_an_encoder_and_a_decoder_are_told_apart() -> None:
    lines = part_table(cost(ORIGINAL, [100])).splitlines()
    names = [line.split("  ")[0] for line in lines[2:18]]
    own = ["queries, keys, values", "scores q·k", "weighted sums of v", "output projection"]
    expected = [f"{where}: {name}" for where in ("encoder", "decoder", "cross") for name in own]
    expected.insert(4, "encoder: feed-forward")
    assert names == [*expected, "decoder: feed-forward", "vocabulary head", "in all"]
    scores = {name: line.split()[-4:] for name, line in zip(names, lines[2:], strict=False)}
    assert scores["encoder: scores q·k"] == ["5.12M", "30.7M", "0.7%", "30.7M"]  # 512 x 100 x 100
    assert scores["decoder: scores q·k"] == ["2.59M", "15.5M", "0.3%", "30.7M"]  # 512 x 5,050
    assert scores["cross: scores q·k"] == ["5.12M", "30.7M", "0.7%", "30.7M"]


def test_a_length_whose_parts_were_not_counted() -> None:
    found = cost(GPT2, range(1, 10))
    sentence = "expected one of 1, 2, 3, 4, 5, 6, 7, 8, ..., got 12. Count that length too."
    with pytest.raises(InputError, match=re.escape(sentence)):
        part_table(found, 12)
    with pytest.raises(InputError, match=re.escape("expected one of 1, got True.")):
        part_table(cost(GPT2, [1]), True)


def test_lengths_beyond_the_context_are_marked() -> None:
    text = cost_table(cost(GPT2, (1024, 1025)))
    assert "\n 1,024   96.7G" in text
    assert "\n1,025*   96.8G" in text
    assert "\n* beyond the model's context of 1,024 tokens: counted, but the model refuses it\n" in text
    assert "* beyond" not in cost_table(cost(GPT2, [1024]))


def test_an_encoder_has_all_pairs_and_no_cache() -> None:
    text = flat(cost_table(cost(BERT, [512])))
    assert "scores q·k and weighted sums of v: all n² pairs." in text
    assert "56.9 MB - multiply-adds" in text
    assert "an encoder alone keeps none." in text
    assert "from 3,073 tokens on, and everything else together from 4,609 on. The model reads at most 512" in text
    assert "With all" not in text  # there is no second number


def test_an_encoder_and_a_decoder() -> None:
    text = flat(cost_table(cost(ORIGINAL, [512])))
    assert "6 + 6 layers, width 512, 8 heads of 64, feed-forward 2,048" in text
    assert "of its last position; encoder and decoder each read so many tokens. A layer: the decoder's, cross-" in text
    assert "the permitted pairs, n(n+1)/2, in the decoder; all n² pairs in the encoder; all n² across." in text
    assert "skips about half of the decoder's own, those above the diagonal" in text


def test_a_window_is_told_where_pairs_are() -> None:
    text = flat(cost_table(cost(WINDOW, [512])))
    assert "weighted sums of v: the permitted pairs within a window of 100 keys." in text
    assert "Pair work never overtakes the feed-forward: beyond the window of 100 keys it grows with n, as they" in text
    assert "With all n² pairs computed: 3,073 and 4,609. So it is where the window is only a mask" in text
    assert "The number of pairs grows with n² up to the window of 100 keys and with n beyond it; no other" in text
    both = flat(cost_table(cost(replace(ORIGINAL, window=1), [9])))
    assert "window of 1 key and with n beyond it, in cross-attention with n²; no other" in both
    assert "the pairs within a window of 1 key in the encoder; all n² across." in both


def test_a_window_that_only_the_feed_forward_loses_to() -> None:
    """Of 12 numbers each, 25 keys a token against a feed-forward of 24 and all the rest of 26 and more."""
    config = Config.decoder(style="gpt2", layers=1, width=6, heads=1, vocabulary=5, context=400, window=25)
    text = flat(cost_table(cost(config, [9])))
    assert "from 301 tokens on, but never everything else together: beyond the window of 25 keys it grows" in text


def test_what_was_measured_stands_beside_what_was_counted() -> None:
    text = cost_table(timed(SMOLLM, {512: 0.5, 2048: 2.0}))
    measured = text[text.index("Measured here") :]
    assert measured.splitlines()[:6] == [
        "Measured here and now: 2 threads, the middle one of 3 runs; runs of one length",
        "are up to 2.0 times as long as another",
        "                 --- pairs ----  -- feed-fwd --  - multiply-adds/s -",
        "tokens  seconds  counted  timed  counted  timed  pairs   ffwd    all",
        "   512     11.5     7.7%   4.3%    69.2%   8.7%  9.08G  40.8G  5.12G",
        " 2,048       13    25.0%  15.4%    56.2%   7.7%  36.3G   163G  22.3G",
    ]
    assert "softmax too, which no multiply-add stands for. The multiply-adds/s count permitted" in flat(measured)
    assert "Measured" not in cost_table(cost(SMOLLM, [512]))


def test_a_measured_crossover_is_said_only_within_the_lengths() -> None:
    between = flat(cost_table(timed(SMOLLM, {500: 0.5, 2000: 2.0})))
    assert (
        "Measured, attention takes longer than the feed-forward from about 1,000 tokens on (between 500 and 2,000, "
        "which were measured); longer than everything else together at none of these lengths. Nothing is said about "
        "lengths beyond these." in between
    )
    above = flat(cost_table(timed(SMOLLM, {500: 20.0})))
    assert (
        "longer than the feed-forward at each of these lengths; longer than everything else together at each" in above
    )
    noisy = flat(cost_table(timed(SMOLLM, {1: 0.5, 2: 2.0, 3: 0.5})))
    assert "than the feed-forward at some of these lengths, with no one change of sides (too noisy to tell)" in noisy


def test_one_run_has_no_middle_and_a_window_its_masks() -> None:
    found = timed(WINDOW, {5: 1.0})
    once = replace(found.lengths[0], measured=Measured(12.0, 1.0, 1.0, (12.0,)))
    text = flat(cost_table(replace(found, lengths=(once,), threads=1)))
    assert "\nMeasured here and now: 1 thread, one run\n" in cost_table(replace(found, lengths=(once,), threads=1))
    assert "stands for; the making of the window's masks too, under which all n² pairs are computed." in text


@pytest.mark.parametrize("config", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("lengths", [(1,), (10**9,), (1, 999, 123_456_789, 10**9)], ids=str)
def test_no_line_is_wider_than_a_terminal(config: Config, lengths: tuple[int, ...]) -> None:
    found = replace(timed(config, dict.fromkeys(lengths, 0.001), rest=123_456.0), name="模" * 70)
    text = cost_table(found) + part_table(found)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert "  \n" not in text
    assert "nan" not in text


def test_a_name_cannot_reorder_or_blank_a_line() -> None:
    text = cost_table(replace(cost(GPT2, [1]), name="a\nb\x1b[31m"))
    assert text.startswith("What one pass of a\\nb\\x1b[31m costs\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (1004, "1.00k"),
        (9994, "9.99k"),
        (9996, "10.0k"),
        (99_949, "99.9k"),
        (99_951, "100k"),
        (999_499, "999k"),
        (999_501, "1.00M"),
        (289_973_993_472, "290G"),
        (2_029_541_916_672, "2.03T"),
        (10**15, "1.00P"),
        (5 * 10**18, "5.00E"),
        (7 * 10**22, "70.0Z"),
        (8 * 10**24, "8.00Y"),
        (999_499_999_999_999_943_156_581_139_192, "999R"),
    ],
)
def test_numbers_in_three_digits(value: int, text: str) -> None:
    assert number(value) == text
    figure, power = re.fullmatch(r"([\d.]+)(\D?)", text).groups()
    assert size(value) == f"{figure} {power}B"


@given(st.integers(0, 10**30))
def test_a_number_is_shown_within_half_of_its_last_digit(value: int) -> None:
    figure, power = re.fullmatch(r"([\d.]+)(\D?)", number(value)).groups()
    shown = float(figure) * 1000 ** ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"].index(power)
    assert abs(shown - value) <= 0.00501 * value
    assert len(figure.replace(".", "")) == 3 or value < 1000


def test_what_no_prefix_names_is_a_power_of_ten() -> None:
    assert number(123 * 10**40) == "1.23e+42"
