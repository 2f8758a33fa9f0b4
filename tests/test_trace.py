"""Traces: what they hold, what they say as JSON, and what a person sees in 80 columns."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import wherefrom
from printed import differences
from small import write_small_model
from wherefrom import Destination, InputError, Scope, Target, knock_out, knock_out_heads, trace
from wherefrom.evidence.carried_sources import CARRIED_FROM
from wherefrom.questions.asked import mean_row
from wherefrom.views.terminal import print_trace, trace_lines

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "trace.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
TEXT = "To be, or not to be"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200d\u2028-\u202e\u2060-\u2069\ufeff]")
ODD_TEXTS = {
    "wide": "中文字符很有趣，因为它们很宽，所以一行放不下那么多字。中文字符很有趣，因为它们很宽",
    "family": "👨‍👩‍👧‍👦 is a family, 🏳️‍🌈 a flag, 👍🏽 a hand, 1️⃣ a key, 🇩🇪🇫🇷 two",
    "Hebrew": "שלום עולם, this is שלום",
    "Arabic": "مرحبا بالعالم and so مرحبا",
    "marks": "e\u0301a\u0300 \u0301\u0302 x\u0336y\u0336 ก็ กำ नमस्ते",
    "script": "</script><script>alert(1)</script> </script>",
    "markup": "[bold]x[/bold] [red]y[/] [/nothing] \\[z] :smile:",
    "controls": "a\n\n\tb\r\nc\x1b[31mred\x1b[0m\x07\x00\x7f\x9b1m \u202eso\u2066 \u200b\ufeff\u2028 end",
    "long tokens": f"x {'#' * 80} {'-' * 64} {'#' * 80}",
    "long blanks": f"\n{' ' * 80}x\n{' ' * 80}",
    "200 tokens": " and then one more" * 50,
}


@pytest.fixture(scope="module")
def traced(small):
    return trace(small, TEXT)


@pytest.fixture(scope="module")
def wordy(smollm, tmp_path_factory):
    """A small random model with the real vocabulary: tokens of many bytes, and bytes that are no character."""
    folder = write_small_model(tmp_path_factory.mktemp("wordy"), vocab_size=smollm.config.vocabulary)
    shutil.copy(smollm.checkpoint.identity.path / "tokenizer.json", folder)
    return wherefrom.load(folder)


def printed(traced, **how):
    out = io.StringIO()
    print_trace(traced, console=Console(file=out, highlight=False), **how)
    return out.getvalue()


def told(traced):
    """The trace as JSON text, without what it cost."""
    return json.dumps({**traced.to_json(), "cost": None}, allow_nan=False)


def test_a_trace_is_its_parts(small, traced):
    recording = wherefrom.record(small, TEXT)
    last = Destination(small, recording)
    target = Target(int(last.logits().argmax()))
    assert traced.aim.target == target
    assert traced.position == 18
    assert traced.tokens.text == TEXT
    assert np.array_equal(traced.weights, mean_row(recording, 18, Scope()))
    assert np.abs(traced.nats - knock_out(last, target).nats).max() <= 1e-5
    assert traced.predicted[0][0] == traced.aim.label == small.tokenizer.label(target.id)
    assert traced.predicted[0][1] == pytest.approx(traced.aim.probability, abs=1e-6)  # recorded, and run again
    shares = [share for _, share in traced.predicted]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1


def test_the_largest_knock_out_comes_first(traced):
    assert sorted(traced.order) == list(range(19))
    sizes = np.abs(traced.nats)[traced.order]
    assert np.all(sizes[:-1] >= sizes[1:])
    assert sizes[0] == np.abs(traced.nats).max()
    ties = replace(traced, knockouts=replace(traced.knockouts, nats=np.array([0.1, -0.3, 0.3, 0.0, -0.1])))
    assert ties.order.tolist() == [1, 2, 0, 4, 3]


@pytest.mark.parametrize("scope", [{}, {"layer": 1}, {"head": 4}, {"layer": 2, "head": 0}], ids=str)
def test_weights_sum_to_one_in_any_scope(small, scope):
    traced = trace(small, TEXT, **scope)
    assert traced.weights.sum() == pytest.approx(1, abs=1e-6)
    layers, heads = ((value,) if value is not None else None for value in (scope.get("layer"), scope.get("head")))
    assert traced.scope == Scope(layers, heads)
    last = Destination(small, traced.recording)
    measured = knock_out(last, traced.aim.target, scope=traced.scope)
    assert np.abs(traced.nats - measured.nats).max() <= 1e-5
    assert np.array_equal(traced.weights, mean_row(traced.recording, 18, traced.scope))
    for carried in traced.carried:
        assert {c.layer for c in carried.carriers} <= set(layers or range(3))
        assert {c.head for c in carried.carriers} <= set(heads or range(6))
        assert len(carried.carriers) + carried.others == (1 if layers else 3) * (1 if heads else 6)
    assert f"weight: {traced.scope.describe(traced.recording)}\n" in printed(traced)


def test_a_position_is_traced_as_if_the_text_ended_there(small):
    for position in (1, 11, 18):
        within, alone = trace(small, TEXT, position=position), trace(small, TEXT[: position + 1])
        assert within.to_json()["text"] == TEXT[: position + 1]
        assert (within.actual_next is None) == (position == 18)
        if position < 18:
            assert within.actual_next == small.tokenizer.encode(TEXT).ids[position + 1]
            assert f"(what comes after position {position} was not read)" in printed(within)
        assert told(replace(within, actual_next=None)) == told(alone)


def test_a_target_may_be_named_or_be_a_lead(small, traced):
    best = traced.aim.target.id
    other = small.tokenizer.one_token("!")
    named = trace(small, TEXT, target="!")
    lead = trace(small, TEXT, against="!")
    assert (named.aim.target, lead.aim.target) == (Target(other), Target(best, other))
    assert np.abs(lead.nats - (traced.nats - named.nats)).max() <= 1e-4
    assert lead.knockouts.before == pytest.approx(np.log(traced.aim.probability / named.aim.probability), abs=1e-4)
    assert lead.aim.probability == traced.aim.probability
    assert 'target: "!", ' in printed(named)
    assert f'target: "{traced.aim.label}", ' in printed(traced)
    label = small.tokenizer.label(best)
    assert f'  target: the lead of "{label}" over "!", {lead.knockouts.before:+.2f} nats\n' in printed(lead)
    assert "knock-out: what the lead of" in printed(lead)


@pytest.mark.parametrize(("sources", "heads"), [(3, 4), (2, 1), (1, 100), (19, 3), (1, 0)])
def test_listed_heads_and_the_others_are_all_heads(small, sources, heads):
    traced = trace(small, TEXT, carried_sources=sources, carriers=heads)
    strong = [source for source in traced.order[:sources] if abs(traced.nats[source]) >= CARRIED_FROM]
    assert [carried.source for carried in traced.carried] == strong
    assert strong
    last = Destination(small, traced.recording)
    nats = knock_out_heads(last, traced.aim.target, strong).nats
    for carried, measured in zip(traced.carried, nats, strict=True):
        listed = [carrier.nats for carrier in carried.carriers]
        assert len(listed) == min(heads, 18)
        assert len(listed) + carried.others == 18
        assert sum(listed) + carried.others_nats == pytest.approx(measured.sum(), abs=1e-4)
        way = np.sign(traced.nats[carried.source])
        ordered = sorted(way * measured.ravel(), reverse=True)
        assert np.allclose(way * np.array(listed), ordered[: len(listed)], atol=1e-5)
        assert (carried.opposing is None) == (carried.others == 0 or ordered[-1] >= 0)
        if carried.opposing is not None:
            assert way * carried.opposing.nats == pytest.approx(ordered[-1], abs=1e-5)
        for carrier in filter(None, (*carried.carriers, carried.opposing)):
            assert carrier.nats == pytest.approx(measured[carrier.layer, carrier.head], abs=1e-5)
            row = wherefrom.weights(traced.recording, layer=carrier.layer, head=carrier.head).values[18]
            assert carrier.weight == pytest.approx(row[carried.source], abs=1e-9)


def test_no_heads_are_cut_unless_asked_for(small):
    traced = trace(small, TEXT, carried_sources=0)
    assert traced.carried == ()
    assert traced.cost.head_rows == 0
    text = printed(traced)
    assert "No head was cut alone: none was asked for.\n" in text
    assert "single heads in" not in text


def test_progress_is_told_to_the_end(small):
    heard = {}
    trace(small, TEXT, progress=lambda what, done, total: heard.setdefault(what, []).append((done, total)))
    assert list(heard) == ["reading 19 tokens (0.0 MB)", "cutting each source", "cutting each head alone"]
    assert heard["reading 19 tokens (0.0 MB)"] == [(1, 3), (2, 3), (3, 3)]
    assert all(calls[-1][0] == calls[-1][1] for calls in heard.values())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"position": 19}, "the position: expected a whole number from 0 to 18, got 19."),
        ({"position": -1}, "the position: expected a whole number from 0 to 18, got -1."),
        (
            {"position": 0},
            "the position: expected at least one token before the position that predicts, got position 0",
        ),
        ({"layer": 3}, "the layer: expected a whole number from 0 to 2, got 3."),
        ({"layer": True}, "the layer: expected a whole number from 0 to 2, got True."),
        ({"head": 6}, "the head: expected a whole number from 0 to 5, got 6."),
        ({"head": -1}, "the head: expected a whole number from 0 to 5, got -1."),
        ({"target": "ab"}, 'the token "ab": expected exactly one token of this model, got 2 ("a", "b").'),
        ({"target": "a", "against": "a"}, "the token to compare with: expected another token than the target"),
        ({"carried_sources": -1}, "carried_sources: expected a whole number from 0 up, got -1."),
        ({"carriers": True}, "carriers: expected a whole number from 0 up, got True."),
    ],
    ids=str,
)
def test_a_trace_that_cannot_be_made(small, wrong, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        trace(small, TEXT, **wrong)


def test_one_token_cannot_be_traced(small):
    with pytest.raises(InputError, match='expected at least one token before the position that predicts, got only "a"'):
        trace(small, "a")


HOW = [
    {},
    {"layer": 1},
    {"head": 4},
    {"layer": 2, "head": 0},
    {"target": "!", "against": "?"},
    {"position": 5},
    {"carried_sources": 0},
    {"carriers": 0},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_json_is_what_the_schema_says(small, how):
    written = trace(small, TEXT, **how).to_json()
    VALIDATOR.validate(written)
    VALIDATOR.validate(json.loads(json.dumps(written, allow_nan=False)))
    assert written["sources"][-1]["own"] is True
    assert sum(source["own"] for source in written["sources"]) == 1
    assert [source["position"] for source in written["sources"]] == list(range(written["position"] + 1))
    assert sum(source["weight"] for source in written["sources"]) == pytest.approx(1, abs=1e-5)
    for source in written["sources"]:
        assert written["text"][slice(*source["span"])] == source["token"]


def test_json_says_what_the_trace_holds(traced):
    written = traced.to_json()
    assert [source["knock_out"] for source in written["sources"]] == [round(float(nats), 7) for nats in traced.nats]
    assert [source["weight"] for source in written["sources"]] == [round(float(share), 7) for share in traced.weights]
    assert [head["source"] for head in written["heads"]] == [carried.source for carried in traced.carried]
    assert written["target"]["nats"] == round(traced.knockouts.before, 7)
    assert [token["id"] for token in written["predicted"]] == list(traced.recording.prediction(18).ids)
    assert written["checks"] == {"calls": 3, "largest_error": traced.largest_check_error}
    assert written["model"]["fingerprint"] == traced.recording.model.fingerprint
    assert written["cost"]["recording_bytes"] == traced.recording.bytes == 19 * 3 * (100 * 4 + 6 * 4)


def test_json_text_is_the_same_every_time(small, traced):
    assert told(trace(small, TEXT)) == told(traced)


def parts(schema):
    yield schema
    for key in ("properties", "$defs"):
        for part in schema.get(key, {}).values():
            yield from parts(part)
    for part in [schema.get("items"), *schema.get("prefixItems", [])]:
        if part is not None:
            yield from parts(part)


def test_the_schema_describes_every_field_and_lets_no_other_in(traced):
    VALIDATOR.check_schema(SCHEMA)
    for part in parts(SCHEMA):
        assert len(part["description"]) > 10, part
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
    for name in ("weight", "knock_out", "nats", "probability", "span", "seconds"):
        described = [part["description"] for part in every_property(SCHEMA) if part["name"].endswith(name)]
        assert described
        units = "share|nats|seconds|code points|unit|how "
        assert all(re.search(units, text, re.IGNORECASE) for text in described), name


def every_property(schema):
    for part in parts(schema):
        for name, value in part.get("properties", {}).items():
            yield {"name": name, **value}


@pytest.mark.parametrize(
    "damage",
    [
        lambda written: written.update(more=1),
        lambda written: written.pop("scope"),
        lambda written: written["sources"][0].update(weight=-0.1),
        lambda written: written["sources"][0].update(knock_out=None),
        lambda written: written["sources"][0].update(span=[1]),
        lambda written: written["heads"][0]["carriers"][0].update(layer=1.5),
        lambda written: written["target"].update(against=3),
        lambda written: written["scope"].update(layers=[]),
        lambda written: written["cost"].update(seconds=1.0),
        lambda written: written.update(schema="wherefrom.trace/1"),
        lambda written: written["model"].update(fingerprint="0"),
    ],
)
def test_the_schema_refuses_what_is_no_trace(traced, damage):
    written = traced.to_json()
    assert VALIDATOR.is_valid(written)
    damage(written)
    assert not VALIDATOR.is_valid(written)


def with_numbers(traced, *, weights=None, nats=None, carried=None):
    """The trace with other numbers in places: {source: number}; the weights of the others share the rest."""
    measured, shares = traced.nats.copy(), traced.weights.copy()
    for source, value in (nats or {}).items():
        measured[source] = value
    if weights is not None:
        shares[:] = (1 - sum(weights.values())) / (19 - len(weights))
        for source, share in weights.items():
            shares[source] = share
    knockouts = replace(traced.knockouts, nats=measured)
    return replace(traced, weights=shares, knockouts=knockouts, carried=traced.carried if carried is None else carried)


def test_the_sink_is_named_exactly_when_it_takes_a_quarter(traced):
    for share, nats, largest, named, spread, both in [
        (0.25, 0.09, 1.5, True, True, False),
        (0.2499, 0.5, 1.5, False, False, False),
        (0.9, 0.04, 1.5, True, False, False),
        (0.9, -0.05, 1.5, True, True, False),
        (0.01, 3.0, 1.5, False, False, False),
        (0.4, 0.5, 7.0, True, True, False),  # a tenth of the largest is what counts
        (0.4, 0.5, 4.9, True, False, True),
        (0.4, -7.31, 1.5, True, False, True),
    ]:
        changed = with_numbers(traced, weights={0: share}, nats=dict.fromkeys(range(19), 0.0) | {0: nats, 5: largest})
        text = printed(changed).replace("\n", " ")
        assert ("an attention sink" in text) is named
        assert (f'The first token, "T", takes {100 * share:.1f}% of the weight.' in text) is named
        assert (f"ts measured knock-out is {nats:+.2f} nats" in text) is named
        assert ("what it held is then spread over the other sources" in text) is spread
        assert ("no evidence that it mattered" in text) is (named and not both)
        assert ("such a cut also spreads a large share of the weight over the other sources" in text) is both


def test_decimals_fit_the_largest_knock_out(traced):
    for largest, shown, small in [
        (2.5, "+2.50", " 0.00 "),
        (0.25, "+0.250", " 0.000 "),
        (0.025, "+0.0250", " 0.0000 "),
        (0.0025, "+2.5e-03", " +4.0e-05 ▎"),
    ]:
        nats = dict.fromkeys(range(19), 0.0) | {3: largest, 4: 0.00004}
        lines = printed(with_numbers(traced, nats=nats, carried=())).splitlines()
        first = next(at for at, line in enumerate(lines) if line.startswith("     3  "))
        assert lines[first].endswith(f" {shown} ████████████")
        assert lines[first + 1].endswith(small)  # no bar beside a zero
        assert all(cell_len(line) <= 80 for line in lines)


def test_a_source_says_what_its_heads_add_up_to(traced):
    found = traced.carried[0]
    heads = [
        replace(found.carriers[0], layer=1, head=at, nats=nats, weight=0.5) for at, nats in enumerate((0.2, 0.004))
    ]
    carried = replace(found, source=3, carriers=tuple(heads), opposing=replace(heads[0], head=5, nats=-0.1), others=16)
    changed = with_numbers(traced, nats={3: 1.4}, carried=(replace(carried, others_nats=-0.15),))
    text = printed(changed)
    assert "L1 H0" in text
    assert "L1 H1" not in text  # below 0.005
    words = " ".join(text.split())
    assert "the other 17 heads add up to -0.15; among them L1 H5 -0.100 (50.0%) goes furthest the other way" in words
    assert "18 heads, each alone, add up to +0.05 of +1.40" in words
    assert "L1 H0 is head 0 of layer 1. One head's cut need not show what several heads do together." in words
    none = replace(carried, carriers=tuple(heads[1:]), opposing=None, others=17, others_nats=0.0)
    assert "no head that goes its way reaches 0.005" in printed(with_numbers(traced, nats={3: 1.4}, carried=(none,)))


def test_why_no_head_was_cut(traced):
    assert "No head was cut alone: none was asked for." in printed(replace(traced, carried=()))
    small = with_numbers(traced, nats=dict.fromkeys(range(19), 0.0499), carried=())
    assert f"No head was cut alone: no knock-out reaches {CARRIED_FROM} nats." in printed(small)


def test_the_target_has_its_base_and_one_is_not_many(small, traced, tmp_path):
    assert re.search(r'^  target: ".*", \d+\.\d% \(-\d+\.\d\d nats\)$', printed(traced), re.MULTILINE)
    assert "in all 18 heads" in " ".join(printed(traced).split())
    assert "is cut in this head" in " ".join(printed(trace(small, TEXT, layer=1, head=2)).split())
    folder = write_small_model(tmp_path / "one", num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    text = printed(trace(wherefrom.load(folder), TEXT))
    assert "1 layer of 1 head, numbered" in text
    assert "1 of 1 call checked" in text


def test_parts_of_characters_are_explained_where_they_are_shown(small, traced):
    assert "make up one character" not in printed(traced)
    text = " ".join(printed(trace(small, "ab 🙂 cd"), top=40).split())
    assert re.search(
        r"🙂 (\d)/4 is token \1 of the 4 that make up one character; bytes \w\w is less than a whole", text
    )


def test_the_prompt_breaks_between_words_and_isolates_right_to_left_lines(wordy):
    text = "Several words that are long enough, together, to fill one line of eighty cells and then some of another"
    first, second = printed(trace(wordy, text)).splitlines()[2:4]
    assert text.startswith(first.strip() + " ")
    assert f"{first.strip()} {second.strip()}".startswith(text)
    line = printed(trace(wordy, "and שלום עולם")).splitlines()[2]
    assert line.startswith("  \u2068and שלום עולם\u2069 → ")


@pytest.mark.parametrize("width", [60, 66, 79])
@pytest.mark.parametrize("text", [TEXT, ODD_TEXTS["wide"], "🙂 " * 20])
def test_a_narrow_terminal(wordy, width, text):
    lines = list(trace_lines(trace(wordy, text, carried_sources=3), top=6, width=width))
    assert max(cell_len(line.plain) for line in lines) <= width
    narrow = io.StringIO()
    print_trace(trace(wordy, text), console=Console(file=narrow, highlight=False, width=width))
    assert max(map(cell_len, narrow.getvalue().splitlines())) <= width


def test_no_columns_at_all_print_as_usual(traced, monkeypatch, capsys):
    wanted = printed(traced)
    monkeypatch.setenv("COLUMNS", "0")
    print_trace(traced)
    assert capsys.readouterr().out == wanted


@pytest.mark.parametrize("name", ODD_TEXTS)
@pytest.mark.parametrize("model", ["small", "wordy"])
def test_no_line_is_wider_than_80_cells_and_nothing_raw_comes_out(request, name, model):
    loaded = request.getfixturevalue(model)
    text = ODD_TEXTS[name][: 250 if model == "small" and name == "200 tokens" else None]
    tokens = loaded.tokenizer.encode(text)
    assert len(tokens) >= (200 if name == "200 tokens" else 4)
    longest = max(range(loaded.tokenizer.vocabulary_size), key=lambda number: len(loaded.tokenizer.token_bytes(number)))
    for how in ({}, {"target": longest, "against": tokens.ids[-1] if tokens.ids[-1] != longest else 0}):
        traced = trace(loaded, text, **how)
        for line in trace_lines(traced, top=40):
            assert cell_len(line.plain) <= 80
            assert not CONTROL.search(re.sub("^  \u2068([^\u2068\u2069]+)\u2069", r"\1", line.plain))  # the prompt's
        shown = printed(traced, top=40)
        assert not CONTROL.search(shown.replace("\u2068", "").replace("\u2069", ""))
        assert shown.splitlines() == [line.plain.rstrip("\n") for line in trace_lines(traced, top=40)]
        VALIDATOR.validate(traced.to_json())
        json.dumps(traced.to_json(), allow_nan=False)


def test_wide_labels_break_their_line_in_time(traced):
    wide = replace(traced, predicted=tuple((f"中文{'字' * length}", 0.1) for length in range(3, 18)))
    lines = [line.plain for line in trace_lines(wide)]
    assert all(cell_len(line) <= 80 for line in lines)
    assert sum("字" in line for line in lines) > 3
    assert "".join(lines).count("字") == sum(range(3, 18))


def test_markup_is_shown_as_it_is(wordy):
    traced = trace(wordy, "see [bold]x[/bold] and [/nothing] now")
    prompt = printed(traced).splitlines()[2]
    assert prompt.startswith("  see [bold]x[/bold] and [/nothing] now → ")


def test_many_tokens_show_their_end(small):
    prompt = "start " + "a" * 240 + " end"
    lines = printed(trace(small, prompt)).splitlines()
    first = lines[2]
    assert first.startswith("  … aaa")
    assert "start" not in first + lines[3] + lines[4]
    assert " end → " in lines[4]


def test_what_is_not_listed_is_counted(traced):
    lines = printed(traced, top=4).splitlines()
    listed = [int(line[:6]) for line in lines if re.match(r" {4}[ \d]\d  \"", line)][: len(lines)]
    heaviest = np.argsort(-traced.weights, kind="stable")[:3]
    shown = [int(source) for source in traced.order]
    shown = [source for place, source in enumerate(shown) if place < 4 or source in heaviest]
    assert listed[: len(shown)] == shown
    others = [source for source in range(19) if source not in shown]
    share, largest = 100 * traced.weights[others].sum(), np.abs(traced.nats[others]).max()
    row = next(line for line in lines if "others together" in line)
    assert row.split() == [str(len(others)), "others", "together", f"{share:.1f}%", "each", "within", f"±{largest:.4f}"]
    everything = printed(traced, top=1000)
    assert "other" not in "".join(line for line in everything.splitlines() if "within" in line)
    assert "1 other " in printed(traced, top=18)


def test_the_three_heaviest_sources_are_always_beside_their_knock_outs(traced):
    light = [int(source) for source in traced.order[-3:]]
    weights = dict(zip(light, (0.1, 0.2, 0.4), strict=True))
    text = printed(with_numbers(traced, weights=weights), top=2)
    for source, share in weights.items():
        assert re.search(rf"^ +{source}  .* {100 * share:.1f}% █", text, re.MULTILINE)
    assert text.index(f"\n{light[0]:>6}  ") < text.index(f"\n{light[1]:>6}  ") < text.index(f"\n{light[2]:>6}  ")


def test_colour_is_for_terminals_only(traced, monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    print_trace(traced)
    piped = capsys.readouterr().out
    assert "\x1b" not in piped
    coloured, plain = io.StringIO(), io.StringIO()
    print_trace(traced, console=Console(file=coloured, force_terminal=True, highlight=False))
    assert "\x1b[34m█" in coloured.getvalue()  # weight is blue
    assert re.search(r"\x1b\[3[15]m█", coloured.getvalue())  # knock-outs are red or magenta
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured.getvalue()) == piped
    monkeypatch.setenv("NO_COLOR", "1")
    print_trace(traced, console=Console(file=plain, force_terminal=True, highlight=False))
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain.getvalue())


MARY = """\
SmolLM2-135M-Instruct · 14 tokens, 30 layers of 9 heads, numbered from 0

  When Mary and John went to the store, John gave a drink to → " Mary"
  predicted next: " Mary" 92.3%, " the" 2.2%, " his" 0.6%, " a" 0.5%,
  " her" 0.5%
  target: " Mary", 92.3% (-0.08 nats)

What position 13, " to", read: its weight, and what cutting it costs
    at  source                  weight                knock-out, nats
     1  " Mary"                  3.3% █              +1.40 ████████████
     9  " John"                  4.9% █▌             +0.51 ████▍
    10  " gave"                  6.0% █▉             +0.16 █▍
     2  " and"                   2.8% ▉              +0.06 ▌
     0  "When"                  37.9% ████████████   -0.06 ▌
     3  " John"                  2.8% ▉              +0.03 ▎
    13  " to" itself             7.1% ██▎            +0.02 ▏
     7  " store"                 2.4% ▊              -0.01 ▏
    12  " drink"                 8.0% ██▌            +0.01 ▏
     8  ","                      5.2% █▋             +0.01
     6  " the"                  14.1% ████▌          +0.01
        3 others together        5.6%                each within ±0.0052
weight: mean over 270 heads (30 layers x 9)
knock-out: what the log-probability of " Mary" loses when the edge is cut in all
270 heads

Largest cuts of one head alone: nats (the head's weight)
     1  " Mary"               L28 H1  +0.0426 (31.5%)  L23 H0  +0.0378 (68.9%)
                              L23 H5  +0.0237 (19.0%)  L23 H7  +0.0150 (47.1%)
                              the other 266 heads add up to -0.05; among them
                              L24 H4 -0.0510 (81.0%) goes furthest the other way
                              270 heads, each alone, add up to +0.07 of +1.40
     9  " John"               L20 H0  +0.0970 (78.5%)  L23 H3  +0.0694 (74.0%)
                              L19 H2  +0.0137 (42.7%)  L24 H4  +0.0068 (6.9%)
                              the other 266 heads add up to +0.02; among them
                              L28 H1 -0.0070 (20.9%) goes furthest the other way
                              270 heads, each alone, add up to +0.21 of +0.51
L28 H1 is head 1 of layer 28. One head's cut need not show what several heads do
together.

The first token, "When", takes 37.9% of the weight. Many heads rest on the first
token whatever it says (an attention sink), so that weight is no evidence that
it mattered. Its measured knock-out is -0.06 nats: what it held is then spread
over the other sources.

A weight says how values were mixed inside one head. It does not say what
mattered: that depends on what was moved, and on every other head, the
feed-forward layers and the residual stream after it. The knock-out is measured;
the two often disagree.

read and recorded in # s (1.6 MB; 30 of 30 calls checked, largest error #); 14
sources cut in # s, 540 single heads in # s
"""


def test_a_trace_of_the_real_model_as_text(smollm):
    prompt = "When Mary and John went to the store, John gave a drink to"
    traced = trace(smollm, prompt)
    VALIDATOR.validate(traced.to_json())
    body, cost = printed(traced).rsplit("\n\n", 1)
    cost = re.sub(r"\d+\.\d\d s\b", "# s", " ".join(cost.split()))
    cost = re.sub(r"error \d+e-\d\d\)", "error #)", cost)
    expected_body, expected_cost = MARY.rsplit("\n\n", 1)
    assert differences(body, expected_body) == []
    assert cost == " ".join(expected_cost.split())
    assert traced.largest_check_error < 1e-4


def test_a_predicted_id_that_only_pads_the_embedding_has_its_number_for_a_label(tmp_path):
    padded = wherefrom.load(write_small_model(tmp_path / "padded", vocab_size=600))
    traced = trace(padded, TEXT, target=599)
    assert traced.aim.label == "id 599"
    assert any(label.startswith("id ") for label, _ in traced.predicted)


def test_of_a_long_text_only_the_traced_position_is_kept(small, monkeypatch):
    whole = trace(small, "a long text, it seems", position=12)
    monkeypatch.setattr("wherefrom.evidence.trace.MUCH", 10_000)
    part = trace(small, "a long text, it seems", position=12)
    assert [call.rows.tolist() for call in part.recording.calls] == [[12]] * 3
    assert part.recording.bytes < 0.6 * whole.recording.bytes
    assert np.array_equal(part.weights, whole.weights)
    assert np.abs(part.nats - whole.nats).max() < 1e-5
