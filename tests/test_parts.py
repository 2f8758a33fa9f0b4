"""Recordings of models with several towers: whose layers differ, run several times, have sinks, or no attention."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import wherefrom
from by_hand import call_of, keeping, random_call, recording_of
from command_line import finite_json, typed
from recordings import GAPS, assert_same, numbers, tokens_of, towers
from test_answers_view import shown
from wherefrom import InputError, Mask, Scope, attend, diff, heads, readers, received, scan, sources, weights
from wherefrom.questions import window_of_weights
from wherefrom.questions.answer import Answer
from wherefrom.recording import (
    Call,
    Gap,
    Recording,
    gaps_as_json,
    gaps_in_words,
    in_order,
    is_numbered,
    numbered,
    open_recording,
    save_recording,
)
from wherefrom.views.answers import answer_lines
from wherefrom.views.recorded import info_lines, recording_facts
from wherefrom.views.terminal import trace_lines
from wherefrom.views.windows import window_lines

SAID = (
    "Attention of 2 modules is not recorded: model.layers.4.attn (softmax, 1 call), vision.head (multi_head_attention, "
    "2 calls). 1 layer has no attention: 1."
)


@pytest.fixture(scope="module", params=["in memory", "in a file"])
def sighted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    if request.param == "in memory":
        return towers()
    return open_recording(save_recording(towers(), tmp_path_factory.mktemp("parts") / "a"))


def page(call: Call) -> Any:
    return attend(call.q, call.k, call.v, call.mask, scale=call.scale, sinks=call.sinks)


def mean_row(calls: list[Call], destination: int) -> np.ndarray:
    """The mean of a destination's rows over all heads of some calls, by the double-precision page."""
    return np.concatenate([page(call).weights[:, destination] for call in calls]).mean(axis=0)


# Positions without a text ---------------------------------------------------------------------------------------------


def test_positions_that_have_no_text_are_numbers() -> None:
    tokens = numbered(100_000)
    assert (len(tokens), tokens.text) == (100_000, "")
    last = tokens[99_999]
    assert (last.position, last.id, last.text, last.data, last.span) == (99_999, 99_999, "", b"", (0, 0))
    assert [token.label for token in tokens[8:11]] == ["[8]", "[9]", "[10]"]
    assert tokens.ids[-1] == 99_999
    assert numbered(2) == numbered(2) != numbered(3)
    with pytest.raises(IndexError):
        _ = numbered(2)[2]


def test_each_side_of_a_call_has_the_text_that_it_is_of(sighted: Recording) -> None:
    text = sighted.tokens
    for call in sighted.calls:
        own = {"decoder": text}.get(call.part, numbered(call.destinations))
        read = text if (call.part, call.kind) == ("decoder", "self") else numbered(call.sources)
        assert sighted.texts_of(call) == (own, read)
    assert sighted.read_by() == (text, text)
    assert sighted.read_by("cross") == (text, numbered(9))
    assert sighted.read_by("self", "vision") == (numbered(9), numbered(9))
    assert sighted.read_by("self", "vision", layer=1, repeat=1) == (numbered(4), numbered(4))
    assert sighted.read_by("cross", "vision.pooler") == (numbered(1), numbered(9))


def test_an_encoder_has_the_text_that_it_read_or_none() -> None:
    call, words = random_call(Mask.bidirectional(), length=5), tokens_of(*"abcde")
    encoder, cross = replace(call, part="encoder"), replace(call, kind="cross")
    facts = replace(towers().model, kind="encoder-decoder", encoder_layers=1)
    heard = Recording(facts, tokens_of(*"xyz12"), (encoder, cross), (), None, 0.0)
    assert heard.texts_of(encoder) == (numbered(5), numbered(5))  # such as frames of sound
    assert heard.texts_of(cross) == (heard.tokens, numbered(5))
    told = replace(heard, source=words)
    assert told.texts_of(encoder) == (words, words)
    assert told.texts_of(cross) == (told.tokens, words)
    assert told.texts_of(replace(encoder, kind="cross")) == (words, numbered(5))
    alone = replace(heard, model=replace(facts, kind="encoder", encoder_layers=0))
    assert alone.texts_of(encoder) == (alone.tokens, alone.tokens)
    looking = replace(encoder, kind="cross")
    assert alone.texts_of(looking) == (alone.tokens, numbered(5))


def test_a_call_over_more_positions_than_its_text_is_numbered_and_kept(tmp_path: Path) -> None:
    """Such as one that reads a prefix that was learned: its sources are not those of the text."""
    text = random_call(Mask(), length=9)
    call = replace(text, q=text.q[:, 2:], lse=text.lse[:, 2:], mask=Mask(offset=2))
    recording = open_recording(save_recording(recording_of(call), tmp_path / "a"))
    destinations, read = recording.texts_of(recording.calls[0])
    assert (len(destinations), is_numbered(destinations), read) == (7, False, numbered(9))
    expected = attend(call.q, call.k, call.v, call.mask, scale=call.scale).weights[:, 6].mean(axis=0)
    answer = sources(recording, 6, top=9)
    assert [row["weight"] for row in answer] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)
    assert {row["token"] for row in answer} == {f"[{at}]" for at in range(9)}
    assert weights(recording, layer=0, head=1).sources == range(9)
    fewer = replace(text, q=text.q[:, :3], lse=text.lse[:, :3], k=text.k[:, :3], v=text.v[:, :3])
    with pytest.raises(InputError, match="expected 7 destinations from position 0 on over 7 sources, those of the te"):
        sources(recording_of(fewer, letters="abcdefg"))


# Which call -----------------------------------------------------------------------------------------------------------


def test_every_call_is_found(sighted: Recording) -> None:
    for call in sighted.calls:
        assert sighted.call(call.layer, call.kind, call.part, call.repeat) is call
    assert sighted.call(0, part="vision").repeat == 0
    assert sighted.call(np.int64(1), "self", "vision", np.int64(1)).repeat == 1


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ((1,), "the layer: expected one that has attention, 0, 2, got 1, which has no attention. Layers are numbered"),
        ((3,), "the layer: expected one of 0, 2, got 3, which has cross-attention alone. Layers are numbered from 0;"),
        (
            (4,),
            "the layer: expected one of 0, 2, got 4, whose attention was not recorded (softmax in model.layers.4.attn)",
        ),
        ((5,), "the layer: expected one of 0, 2, got 5. Layers are numbered from 0; these are the ones that the rec"),
        ((None,), "the layer: expected one of 0, 2, got None."),
        ((1, "self", "vision", 2), "the repeat: expected one of 0, 1, the executions of layer 1, got 2. Executions"),
        ((1, "self", "vision", True), "the repeat: expected one of 0, 1, the executions of layer 1, got True."),
        ((2, "self", "vision"), "the layer: expected one of 0, 1, got 2."),
        (
            (0, "self", "audio"),
            "the kind of attention: expected one that was recorded (self of part vision, cross of part vision.pooler, "
            "self of the decoder, cross of the decoder), got self of part audio.",
        ),
    ],
)
def test_why_there_is_no_call(sighted: Recording, asked: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        sighted.call(*asked)
    assert str(caught.value).startswith(sentence)


def test_a_gap_belongs_to_the_part_in_whose_stack_it_is(sighted: Recording) -> None:
    assert {layer: gap.what for layer, gap in sighted.gaps_of().items()} == {1: "no attention", 4: "softmax"}
    assert sighted.gaps_of("vision") == {}
    more = (*GAPS, Gap("vision.blocks.5.conv", "no attention", 5), Gap("mixer", "no attention", 7))
    extended = replace(towers(), gaps=more)
    assert set(extended.gaps_of("vision")) == {5}
    assert set(extended.gaps_of()) == {1, 4, 7}  # of an unknown stack: the part's that predicts
    assert (extended.layers_of("vision"), extended.layers_of(), extended.layers_of("vision.pooler")) == (6, 8, 1)
    with pytest.raises(InputError, match="expected one that has attention, 0, 1, got 5, which has no attention"):
        sources(extended, part="vision", layer=5)


def test_the_order_of_calls(sighted: Recording) -> None:
    backwards = in_order(tuple(reversed(towers().calls)))
    for one, other in zip(backwards, sighted.calls, strict=True):
        assert [getattr(one, name) for name in ("part", "kind", "layer", "repeat")] == [
            getattr(other, name) for name in ("part", "kind", "layer", "repeat")
        ]
    call = random_call(Mask())
    named = [("decoder", "cross"), ("encoder", "cross"), ("decoder", "self"), ("zoom", "self"), ("encoder", "self")]
    found = in_order([replace(call, part=part, kind=kind) for part, kind in named])
    assert [(one.part, one.kind) for one in found] == [
        ("zoom", "self"),
        ("encoder", "self"),
        ("encoder", "cross"),
        ("decoder", "self"),
        ("decoder", "cross"),
    ]


def test_the_same_file_comes_of_any_order(tmp_path: Path) -> None:
    one = save_recording(towers(), tmp_path / "a")
    other = save_recording(replace(towers(), calls=tuple(reversed(towers().calls))), tmp_path / "b")
    for name in ("recording.json", "calls/vision-self-001-1.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert_same(open_recording(other), towers())


# Layers that differ ---------------------------------------------------------------------------------------------------


def test_means_go_over_all_heads_of_layers_that_differ(sighted: Recording) -> None:
    calls = [sighted.call(0), sighted.call(2)]
    answer = sources(sighted, 5, top=99)
    mean = mean_row(calls, 5)
    assert {row["source"]: row["weight"] for row in answer} == pytest.approx(
        {at: mean[at] for at in range(6)}, abs=1e-6
    )
    assert answer.question.endswith("mean over the 10 heads that the recording keeps of those asked for")
    whole = replace(towers(), gaps=GAPS[:1], model=replace(towers().model, layers=4))
    assert sources(whole).question.endswith("mean over 10 heads (2 layers)")
    assert sources(whole, head=3).question.endswith("mean over head 3 of each of the 2 layers")
    assert sources(whole, kind="cross").question.endswith("mean over 2 heads of cross-attention (1 layer x 2)")


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda r: sources(r, head=5),
            "the head: expected one that every layer asked for has: layer 2 has 0 to 3, got 5. Name the layers too,",
        ),
        (lambda r: heads(r, head=5), "the head: expected one that every layer asked for has: layer 2 has 0 to 3, got"),
        (lambda r: Scope(None, (1, 4)).checked(r), "the head: expected one that every layer asked for has: layer 2"),
        (lambda r: Scope((0, 2), (4,)).describe(r), "the head: expected one that every layer asked for has: layer 2"),
        (lambda r: sources(r, head=6), "the head: expected a whole number from 0 to 5, got 6."),
        (lambda r: sources(r, layer=2, head=4), "the head: expected a whole number from 0 to 3, got 4."),
        (lambda r: weights(r, layer=2, head=4), "the head: expected a whole number from 0 to 3, got 4."),
        (lambda r: sources(r, layer=1), "the layer: expected one that has attention, 0, 2, got 1, which"),
        (lambda r: heads(r, layer=4), "the layer: expected one of 0, 2, got 4, whose attention was not recorded"),
        (lambda r: received(r, layer=5), "the layer: expected a whole number from 0 to 4, got 5."),
        (lambda r: sources(r, part="vision", layer=2), "the layer: expected a whole number from 0 to 1, got 2."),
        (lambda r: sources(r, part="Vision"), "the part of the model: expected 'decoder', 'encoder' or the name of an"),
        (lambda r: sources(r, repeat=-1), "the repeat: expected a whole number from 0 up, got -1."),
        (lambda r: sources(r, repeat=1), "the repeat: expected one of 0, the executions of layer 0, got 1."),
        (lambda r: Scope(repeat=1).within(r.model), "the repeat: expected 0, or none, got 1."),
    ],
)
def test_what_not_every_layer_has_is_refused(sighted: Recording, ask: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        ask(sighted)
    assert str(caught.value).startswith(sentence)


def test_a_head_of_one_layer_alone_is_asked_about_with_its_layer(sighted: Recording) -> None:
    assert sources(sighted, layer=0, head=5).question.endswith("layer 0, head 5")
    assert [(row["layer"], row["head"]) for row in heads(sighted)] == [
        *((0, head) for head in range(6)),
        *((2, head) for head in range(4)),
    ]


def test_keys_and_values_of_other_sizes(sighted: Recording) -> None:
    for call in sighted.calls:
        assert call.shapes["v"][2] != call.shapes["k"][2]
        for head in call.head_numbers:
            rows, columns = range(call.destinations), range(call.sources)
            found = window_of_weights(call, head, rows, columns)
            assert np.abs(found - page(call).weights[head]).max() < 1e-6


def test_recordings_whose_heads_differ_are_not_compared() -> None:
    one, other = random_call(Mask(), heads=4, kv_heads=2), random_call(Mask())
    first, second = recording_of(one, replace(one, layer=1)), recording_of(one, replace(other, layer=1))
    with pytest.raises(InputError, match=r"got 2 layers of 4 heads and 2 layers of 6 heads in layer 1\."):
        diff(first, second)
    assert len(diff(first, second, layer=0)) == 4


# Executions -----------------------------------------------------------------------------------------------------------


def test_one_execution_of_a_tower(sighted: Recording) -> None:
    calls = [sighted.call(layer, part="vision", repeat=1) for layer in (0, 1)]
    answer = sources(sighted, 2, part="vision", repeat=1)
    mean = mean_row(calls, 2)
    assert {row["source"]: row["weight"] for row in answer} == pytest.approx(dict(enumerate(mean)), abs=1e-6)
    assert answer.question == (
        'Which sources does position 2 ("[2]") read? mean over 8 heads of part vision (2 layers x 4), execution 1'
    )
    assert {row["repeat"] for row in answer} == {1}
    column = np.concatenate([page(call).weights[:, :, 3] for call in calls])
    found = {row["destination"]: row["weight"] for row in readers(sighted, 3, part="vision", repeat=1)}
    assert found == pytest.approx(dict(enumerate(column.mean(axis=0))), abs=1e-6)
    total = {row["source"]: row["received"] for row in received(sighted, part="vision", repeat=1)}
    assert total[3] == pytest.approx(column.sum(axis=1).mean(), abs=1e-5)
    scanned = scan(sighted, 1, "received", part="vision", repeat=1)["received"]
    assert np.abs(scanned - page(calls[1]).weights.sum(axis=1)).max() < 1e-5
    window = weights(sighted, layer=1, head=2, part="vision", repeat=1)
    assert "head 2 of layer 1 of part vision, execution 1, weight" in window.question
    assert np.abs(window.values - page(calls[1]).weights[2]).max() < 1e-6
    assert (window.to_json()["repeat"], window.to_json()["part"]) == (1, "vision")
    assert weights(sighted, layer=1, head=2, part="vision").values.shape == (9, 9)


def test_executions_over_positions_of_their_own_are_not_averaged(sighted: Recording) -> None:
    for ask in (sources, received, lambda r, **how: readers(r, 0, **how)):
        with pytest.raises(InputError, match=r"got 9 over 9 in layer 0 and 4 over 4 in layer 0, execution 1\."):
            ask(sighted, part="vision")
    call = replace(random_call(Mask.bidirectional()), part="vision")
    alike = replace(towers(), calls=(call, replace(call, repeat=1)))
    sentence = "the repeat: expected one of 0, 1, since each execution of layer 0 has positions of its own, got none."
    with pytest.raises(InputError, match=re.escape(sentence)):
        sources(alike, part="vision")
    assert len(sources(alike, part="vision", repeat=1)) == 7


def test_calls_of_different_sizes_are_not_averaged() -> None:
    """Such as those of a tower that halves its image from stage to stage."""
    stages = [random_call(Mask.bidirectional(), length=size, layer=layer) for layer, size in enumerate((8, 4))]
    recording = replace(towers(), calls=tuple(replace(call, part="vision") for call in stages))
    with pytest.raises(InputError, match=r"got 8 over 8 in layer 0 and 4 over 4 in layer 1\. Ask about one layer"):
        sources(recording, part="vision")
    assert len(sources(recording, part="vision", layer=1)) == 4
    assert len(heads(recording, part="vision")) == 12


def test_layers_that_share_a_module_are_its_executions() -> None:
    calls = [random_call(Mask(), seed=seed) for seed in (1, 2, 3)]
    shared = recording_of(*(replace(call, repeat=at) for at, call in enumerate(calls)))
    answer = sources(shared, 6, top=7)
    assert answer.question.endswith("mean over 6 heads (1 layer x 6), run 3 times each")
    mean = mean_row(calls, 6)
    assert {row["source"]: row["weight"] for row in answer} == pytest.approx(dict(enumerate(mean)), abs=1e-6)
    for row in answer:
        found = page(calls[row["repeat"]]).weights[row["head"], 6, row["source"]]
        assert row["largest"] == pytest.approx(found, abs=1e-6)
    table = heads(shared)
    assert [(row["repeat"], row["head"]) for row in table] == [(at, head) for at in range(3) for head in range(6)]
    assert table.question == "What does every head read? every head of 1 layer, in 3 executions"
    assert {row["repeat"] for row in received(shared)} <= {0, 1, 2}
    moved = recording_of(*(replace(call, repeat=at) for at, call in enumerate((*calls[:2], calls[0]))))
    rows = [(row["repeat"], row["moved"] > 0.01) for row in diff(shared, moved, top=18)]
    assert sorted(rows) == [*[(0, False)] * 6, *[(1, False)] * 6, *[(2, True)] * 6]


# Sinks ----------------------------------------------------------------------------------------------------------------


def sink_shares(call: Call) -> np.ndarray:
    """What a sink takes of each row, [H, T], by the double-precision page: the rest of the row."""
    return 1.0 - page(call).weights.sum(axis=-1)


def test_the_sink_is_a_column_of_its_own_among_sources(sighted: Recording) -> None:
    for destination in (0, 6):
        for how in ({}, {"layer": 2}, {"layer": 2, "head": 1}):
            answer = sources(sighted, destination, top=1, **how)
            own = sink_shares(sighted.call(2))[how.get("head", slice(None)), destination]
            expected = np.sum(own) / (10 if not how else np.size(own))
            (row,) = answer.rows
            assert row[-1] == pytest.approx(expected, abs=1e-6)
            assert row[2] + answer.remainder + row[-1] == pytest.approx(1.0, abs=1e-5)
            assert answer.columns[-1].name == "sink"
            assert answer.columns[-1].unit == "share of a row"
            assert f"Sinks take {row[-1]:.4f} of the row, which are no source's." in answer.left_out
    assert "sink" not in {column.name for column in sources(sighted, layer=0).columns}
    assert "Sinks" not in sources(sighted, layer=0).left_out


def test_rows_that_read_nothing_are_in_no_mean_of_sinks() -> None:
    mask = Mask.bidirectional(explicit=np.tri(7, k=0, dtype=bool) & (np.arange(7) > 0)[:, None])
    call = random_call(mask, sinks=numbers(6))
    answer = sources(recording_of(call), 0)
    assert len(answer) == 0
    table = heads(recording_of(call))
    assert [row["sink"] for row in table] == pytest.approx(sink_shares(call)[:, 1:].mean(axis=1).tolist(), abs=1e-5)
    window = weights(recording_of(call), layer=0, head=2)
    assert window.to_json()["sinks"][0] is None
    assert window.sinks is not None
    assert np.ma.getmaskarray(window.sinks).tolist() == [True] + [False] * 6
    assert np.abs(window.sinks - sink_shares(call)[2]).max() < 1e-6


def test_the_sink_is_a_column_of_its_own_in_a_window(sighted: Recording) -> None:
    window = weights(sighted, layer=2, head=1, sources=range(3))
    assert window.sinks is not None
    assert np.abs(window.sinks - sink_shares(sighted.call(2))[1]).max() < 1e-6
    assert np.abs(window.values.sum(axis=1) + window.left_out + window.sinks - 1.0).max() < 1e-5
    assert window.to_json()["sinks"] == window.sinks.tolist()
    assert f"share of each row that the sink takes: [{window.sinks[0]:.4f} " in str(window)
    lines = shown(window_lines(window, *sighted.read_by()))
    head = next(line for line in lines.splitlines() if "outside" in line)
    assert head.split() == ["0", "1", "2", "outside", "sink"]
    assert f"{window.sinks[6]:.4f}" in next(line for line in lines.splitlines() if line.lstrip().startswith("6 "))
    assert "sink is the share that the head's sink takes, which is no source's." in " ".join(lines.split())
    other = weights(sighted, layer=0, head=1)
    assert other.sinks is None
    assert other.to_json()["sinks"] is None
    assert "sink" not in shown(window_lines(other, *sighted.read_by()))


def test_the_sink_is_a_column_of_its_own_of_heads(sighted: Recording) -> None:
    answer = heads(sighted)
    expected = sink_shares(sighted.call(2)).mean(axis=1)
    shares = {(row["layer"], row["head"]): row["sink"] for row in answer}
    assert [shares[0, head] for head in range(6)] == [None] * 6
    assert [shares[2, head] for head in range(4)] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [row["head"] for row in heads(sighted, sort="sink", top=4)] == np.argsort(-expected).tolist()
    assert {row["head"] for row in heads(sighted, where=["sink>0.4"])} == set(np.flatnonzero(expected > 0.4))
    assert "sink" not in {column.name for column in heads(sighted, layer=0).columns}


def test_heads_of_positions_without_a_text_repeat_no_token(sighted: Recording) -> None:
    table = heads(sighted, part="vision", repeat=0)
    assert {(row["duplicate"], row["induction"]) for row in table} == {(None, None)}
    assert table.question == "What does every head read? every head of each of 2 layers of part vision"
    with pytest.raises(InputError, match='a scan for "duplicate"'):
        scan(sighted, 0, "duplicate", part="vision")


# Gaps -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ((), ""),
        (GAPS, SAID),
        (GAPS[2:], "Attention of 1 module is not recorded: vision.head (multi_head_attention, 2 calls)."),
        (
            tuple(Gap(f"a.{n}.b", "softmax", n, 1) for n in range(5)),
            "Attention of 5 modules is not recorded: a.0.b (softmax, 1 call), a.1.b (softmax, 1 call), a.2.b (softmax, "
            "1 call) and 2 more.",
        ),
        (tuple(Gap(f"a.{n}", "no attention", n) for n in (0, 1, 3)), "3 layers have no attention: 0, 1, 3."),
        (
            (Gap("a.0", "no attention", 0), Gap("b.0", "no attention", 0)),
            "2 layers have no attention: a.0, b.0.",
        ),
        ((Gap("conv", "no attention"),), "1 layer has no attention: conv."),
    ],
)
def test_gaps_in_words(gaps: tuple[Gap, ...], said: str) -> None:
    assert gaps_in_words(gaps) == said


ANSWERS: dict[str, Any] = {
    "sources": lambda r: sources(r),
    "readers": lambda r: readers(r, 1),
    "received": lambda r: received(r),
    "heads": lambda r: heads(r),
    "diff": lambda r: diff(r, towers()),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_say_what_is_not_recorded(sighted: Recording, name: str) -> None:
    answer: Answer = ANSWERS[name](sighted)
    assert answer.gaps == GAPS
    assert answer.to_json()["gaps"] == gaps_as_json(GAPS)
    assert json.loads(json.dumps(answer.to_json()))["gaps"][1] == {
        "name": "model.layers.4.attn",
        "what": "softmax",
        "layer": 4,
        "calls": 1,
    }
    assert str(answer).endswith(f"\n{SAID}")
    assert " ".join(shown(answer_lines(answer)).split()).endswith(SAID)
    nothing = ANSWERS[name](replace(towers(), gaps=())) if name != "diff" else sources(replace(towers(), gaps=()))
    assert nothing.to_json()["gaps"] == []
    assert "not recorded" not in str(nothing)


def test_a_window_says_what_is_not_recorded(sighted: Recording) -> None:
    window = weights(sighted, layer=0, head=0)
    assert window.to_json()["gaps"] == gaps_as_json(GAPS)
    assert str(window).endswith(f"\n{SAID}")
    assert " ".join(shown(window_lines(window, *sighted.read_by())).split()).endswith(SAID)


def test_a_trace_says_what_is_not_recorded(small: wherefrom.LanguageModel) -> None:
    whole = wherefrom.trace(small, "some text")
    traced = replace(whole, recording=replace(whole.recording, gaps=GAPS))
    schema = json.loads((Path(__file__).parent.parent / "docs" / "trace.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(traced.to_json(), schema)
    assert traced.to_json()["gaps"] == gaps_as_json(GAPS)
    assert whole.to_json()["gaps"] == []
    assert str(traced).endswith(SAID)
    said = " ".join(shown(trace_lines(traced)).split())
    assert SAID in said
    assert "not recorded" not in shown(trace_lines(whole))


def test_a_difference_has_the_gaps_of_both() -> None:
    one, other = Gap("a", "softmax", None, 1), Gap("b", "softmax", None, 1)
    call = random_call(Mask())
    found = diff(replace(recording_of(call), gaps=(one,)), replace(recording_of(call), gaps=(other, one)))
    assert found.gaps == (one, other)


def test_layers_without_attention_are_no_heads_that_were_not_kept() -> None:
    whole = replace(towers(), gaps=GAPS[:1], model=replace(towers().model, layers=4))
    assert "does not keep" not in heads(whole).left_out
    assert sources(replace(whole, gaps=())).question.endswith("that the recording keeps of those asked for")
    assert "all heads of 1 layer that the recording does not keep" in heads(replace(whole, gaps=())).left_out
    part = replace(whole, calls=(*whole.calls[:5], keeping(whole.calls[5], [1, 5], range(7)), *whole.calls[6:]))
    assert heads(part).left_out.startswith("Left out: 4 heads that the recording does not keep; 1 call in which not")


# Commands and views ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    save_recording(towers(), tmp_path / "a.wherefrom")
    return lambda *arguments: typed(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("typed_in", "verb"),
    [
        (("sources", 2, "--part", "vision", "--repeat", 1), lambda r: sources(r, 2, part="vision", repeat=1)),
        (("readers", 2, "--part", "vision", "--repeat", 0), lambda r: readers(r, 2, part="vision", repeat=0)),
        (("received", "--part", "vision", "--repeat", 1), lambda r: received(r, part="vision", repeat=1)),
        (("heads", "--part", "vision", "--repeat", 1), lambda r: heads(r, part="vision", repeat=1)),
        (
            ("weights", "--layer", 1, "--head", 3, "--part", "vision", "--repeat", 1, "--sources", "1:4"),
            lambda r: weights(r, layer=1, head=3, part="vision", repeat=1, sources=range(1, 4)),
        ),
        (
            ("weights", "--layer", 0, "--head", 0, "--part", "vision.pooler", "--kind", "cross"),
            lambda r: weights(r, layer=0, head=0, part="vision.pooler", kind="cross"),
        ),
    ],
)
def test_commands_ask_a_tower(ask: Any, tmp_path: Path, typed_in: Any, verb: Any) -> None:
    command, *options = typed_in
    wanted = json.loads(json.dumps(verb(open_recording(tmp_path / "a.wherefrom")).to_json()))
    assert finite_json(ask(command, "a.wherefrom", *options, "--json")) == wanted
    assert SAID in " ".join(ask(command, "a.wherefrom", *options).out.split())


def test_a_difference_of_one_execution(ask: Any, tmp_path: Path) -> None:
    opened = open_recording(tmp_path / "a.wherefrom")
    wanted = json.loads(json.dumps(diff(opened, opened, part="vision", repeat=1).to_json()))
    options = ("--part", "vision", "--repeat", 1)
    assert finite_json(ask("diff", "a.wherefrom", "a.wherefrom", *options, "--json")) == wanted
    assert wanted["question"].startswith("In which heads of part vision do two recordings by sighted weight their pos")


def test_a_file_of_a_window_has_the_sink_behind_the_sources(ask: Any, tmp_path: Path) -> None:
    said = ask("weights", "a.wherefrom", "--layer", 2, "--head", 1, "--out", "map.csv").out
    assert SAID in " ".join(said.split())
    rows = list(csv.reader((tmp_path / "map.csv").read_text().splitlines()))
    window = weights(towers(), layer=2, head=1)
    assert rows[0] == ["destination", *map(str, range(7)), "sink"]
    assert window.sinks is not None
    assert [float(row[-1]) for row in rows[1:]] == pytest.approx(window.sinks.tolist(), abs=1e-9)
    ask("weights", "a.wherefrom", "--layer", 2, "--head", 1, "--out", "map.npy")
    assert np.load(tmp_path / "map.npy").shape == (7, 7)
    found = finite_json(ask("weights", "a.wherefrom", "--layer", 2, "--head", 1, "--out", "map.json", "--json"))
    assert found["gaps"] == gaps_as_json(GAPS)


def test_of_one_head_that_ran_twice_no_column_is_left_out(ask: Any, tmp_path: Path) -> None:
    calls = [random_call(Mask(), seed=seed) for seed in (1, 2)]
    shared = recording_of(*(replace(call, repeat=at) for at, call in enumerate(calls)))
    save_recording(shared, tmp_path / "b.wherefrom")
    said = ask("sources", "b.wherefrom", "--layer", 0, "--head", 1).out
    assert "largest" in said
    assert "repeat" in said


INFO = """\
kept         self-attention of part vision: layers 0:2 in 4 executions, all 4
             heads, all 9 positions, no output projections (in layer 0; other
             layers have others)
             float32; mask: bidirectional
kept         cross-attention of part vision.pooler: layer 0, all 2 heads, its
             one position, no output projections
             float32; mask: bidirectional
kept         self-attention of the decoder: layers 0,2 of 5 (1 has no
             attention), all 6 heads, all 7 positions, no output projections (in
             layer 0; other layers have others)
             float32; mask: causal, window of 3 keys; or causal, sinks
kept         cross-attention of the decoder: layer 3 of 5 (1 has no attention),
             all 2 heads, all 7 positions, no output projections
             float32; mask: bidirectional
not recorded attention in model.layers.4.attn, layer 4: softmax, 1 call
             attention in vision.head: multi_head_attention, 2 calls
             1 layer has no attention: 1
"""


def test_info_says_what_is_there_and_what_is_not(ask: Any, tmp_path: Path) -> None:
    said = ask("info", "a.wherefrom").out
    assert "head size 5; fingerprint" in " ".join(said.split())
    start = said.index("kept ")
    assert said[start : said.index("size   ")] == INFO
    facts = finite_json(ask("info", "a.wherefrom", "--json"))
    assert facts["gaps"] == gaps_as_json(GAPS)
    first, _, own, _ = facts["calls"]
    assert (first["layers"], first["of_layers"], first["executions"], first["of_heads"]) == ([0, 1], None, 4, 4)
    assert (own["layers"], own["of_layers"], own["without_attention"], own["executions"]) == ([0, 2], 5, [1], 2)


def test_info_counts_gaps_beyond_a_screen(tmp_path: Path) -> None:
    gaps = tuple(Gap(f"a.{n}", "softmax", n, 1) for n in range(25))
    opened = open_recording(save_recording(replace(towers(), gaps=gaps), tmp_path / "b"))
    facts = {**recording_facts(opened), "verified": None, "listed": None}
    said = shown(info_lines(facts))
    assert said.count("attention in a.") == 20
    assert "attention in 5 modules more" in said
    assert len(facts["gaps"]) == 25


def test_a_recording_of_gaps_alone_is_kept(tmp_path: Path) -> None:
    nothing = replace(towers(), calls=())
    opened = open_recording(save_recording(nothing, tmp_path / "a"))
    assert (len(opened.calls), opened.gaps) == (0, GAPS)
    with pytest.raises(InputError, match=r"expected one that was recorded \(none\)"):
        opened.call(0)
    assert wherefrom.verify_recording(tmp_path / "a").recording.gaps == GAPS


def test_an_execution_in_words() -> None:
    call = call_of(np.ones((1, 1, 1)), np.ones((1, 1, 1)))
    assert "self, 1 heads" in repr(call)
    assert "self, execution 3, 1 heads" in repr(replace(call, repeat=3))
