"""Figures for a paper: what is drawn against the answers, that nothing in a token acts, and both ways out agree."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import wherefrom
from by_hand import MASKS, call_of, keeping, random_call, recording_of
from command_line import Ended, typed
from kinds import small_model
from recordings import tokens_of, towers
from wherefrom import InputError, save_recording
from wherefrom.evidence.at import evidence_at
from wherefrom.questions.asked import sink_share
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import kind_of
from wherefrom.questions.maps import HeadMap
from wherefrom.readable import readable
from wherefrom.recording import Recording
from wherefrom.views import picture
from wherefrom.views.colours import BEHIND_TEXT, QUIET, kind_colours, oklch, ramp
from wherefrom.views.figures import figure_of_heads, figure_of_map
from wherefrom.views.glowing import figure_of_evidence, figure_of_text
from wherefrom.views.picture import Area, Frame, Picture, Words
from wherefrom.views.sheet import SIGNS

HOSTILE = ("</text><script>alert(1)</script>", "]]>&amp;'\"", "אבג", "\u200b\u202e", "🙂", "中文")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def recording() -> Recording:
    calls = random_call(MASKS["causal"]), random_call(MASKS["window of 3"], layer=1, seed=5)
    return recording_of(*calls, letters="abcabca")


def areas(drawn: Picture, fill: str) -> list[tuple[float, float, float, float]]:
    return [box for shape in drawn.shapes if isinstance(shape, Area) and shape.fill == fill for box in shape.boxes]


def words(drawn: Picture) -> list[str]:
    return [shape.text for shape in drawn.shapes if isinstance(shape, Words)]


def colour_at(drawn: Picture, x: float, y: float) -> str:
    """The fill that is drawn last at a place."""
    fills = [
        shape.fill
        for shape in drawn.shapes
        if isinstance(shape, Area)
        for left, top, wide, high in shape.boxes
        if left <= x < left + wide and top <= y < top + high
    ]
    return fills[-1]


def frame(drawn: Picture) -> tuple[float, float, float, float]:
    return next(shape.box for shape in drawn.shapes if isinstance(shape, Frame))


@pytest.mark.parametrize("mask", ["causal", "window of 3", "padding before", "another map a head"])
def test_every_cell_of_a_map_has_the_colour_of_its_weight(mask: str) -> None:
    call = random_call(MASKS[mask])
    drawn = figure_of_map(recording_of(call), 0, 2)
    tile = HeadMap(call, 2).tile(0, 0, 0)
    left, top, wide, high = frame(drawn)
    most = np.nanmax(tile.largest)
    fills = {1: picture.FORBIDDEN, 2: picture.EMPTY, 3: picture.UNRECORDED}
    for row in range(7):
        for column in range(7):
            found = colour_at(drawn, left + (column + 0.5) * wide / 7, top + (row + 0.5) * high / 7)
            mark = int(tile.marks[row, column])
            assert found == (fills[mark] if mark else ramp()[round(float(tile.largest[row, column] / most) * 255)])
    assert f"linear, 0 to {most:.3g}, the largest here" in " ".join(drawn.notes)
    assert drawn.notes[0].startswith("A row is the token that reads, a column the token it reads from.")
    legend = {"not permitted", "may read nothing: no row", "not recorded"} & set(words(drawn))
    assert len(legend) == len(set(np.unique(tile.marks)) - {0})


def test_a_log_scale_tells_small_weights_apart() -> None:
    q = np.ones((1, 5, 1), np.float32)
    k = np.array([0.0, -4.0, -8.0, -12.0, -1.0], np.float32)[None, :, None]
    drawn_from = recording_of(call_of(q, k), letters="abcde")  # weights apart by factors of e^4
    weights = HeadMap(drawn_from.calls[0], 0).tile(0, 0, 0).largest
    drawn = figure_of_map(drawn_from, 0, 0, scale="log")
    left, top, wide, high = frame(drawn)
    for row, column in [(3, 0), (3, 1), (3, 2), (3, 3), (4, 4)]:  # the largest is 1
        share = max(0.0, 1 + math.log10(weights[row, column]) / 4)
        found = colour_at(drawn, left + (column + 0.5) * wide / 5, top + (row + 0.5) * high / 5)
        assert found == ramp()[int(share * 255 + 0.5)]
    assert "logarithmic, 0.0001 to 1, the largest here; 2 cells with less, above 0, are drawn" in " ".join(drawn.notes)
    assert {"0.0001", "1 weight, log scale"} <= set(words(drawn))
    text = figure_of_text(drawn_from, 3, scale="log")
    tokens = [shape for shape in text.shapes if isinstance(shape, Words) and shape.font == picture.MONO]
    share = 1 + math.log10(weights[3, 1] / weights[3, 0]) / 4
    assert colour_at(text, tokens[1].x + 1, tokens[1].y - 5) == ramp(BEHIND_TEXT)[int(share * 255 + 0.5)]
    assert "1 source with less, above 0, is drawn as the least" in " ".join(text.notes)
    for draw in (lambda: figure_of_map(drawn_from, 0, 0, scale="ln"), lambda: figure_of_text(drawn_from, scale="ln")):
        with pytest.raises(InputError, match="the scale: expected linear or log, got 'ln'"):
            draw()


def test_a_long_map_says_its_blocks() -> None:
    long = recording_of(random_call(MASKS["causal"], length=300), letters="ab" * 150)
    for of in ("largest", "mean"):
        drawn = figure_of_map(long, 0, 1, of=of)
        tile = HeadMap(long.calls[0], 1).tile(1, 0, 0)
        values = tile.largest if of == "largest" else tile.mean
        assert f"Each cell is a block of 2 destinations by 2 sources: the {of} weight in it." in " ".join(drawn.notes)
        left, top, wide, high = frame(drawn)
        found = colour_at(drawn, left + 0.5 * wide / 150, top + 100.5 * high / 150)
        assert found == ramp()[round(float(values[100, 0] / np.nanmax(values)) * 255)]
    with pytest.raises(InputError, match="a block's value: expected largest or mean, got 'median'"):
        figure_of_map(long, 0, 1, of="median")


def test_what_was_not_recorded_is_dotted_and_a_sink_has_its_strip() -> None:
    call = random_call(MASKS["causal"])
    some = figure_of_map(recording_of(keeping(call, range(6), [2, 6])), 0, 2)
    assert "not recorded" in words(some)
    assert sum(wide * high for _, _, wide, high in areas(some, picture.UNRECORDED)[:-1]) > 0
    call = random_call(MASKS["causal"], sinks=np.zeros(6, np.float32))
    sinks = figure_of_map(recording_of(call), 0, 2)
    assert "sink" in words(sinks)
    left, top, wide, high = frame(sinks)
    shares = sink_share(call, 2, range(7)).astype(np.float32)
    most = max(np.nanmax(HeadMap(call, 2).tile(0, 0, 0).largest), shares.max())
    for row, share in enumerate(shares):
        found = colour_at(sinks, left - 1.5 * wide / 7, top + (row + 0.5) * high / 7)  # a cell's room before the map
        assert found == ramp()[int(share / most * 255 + 0.5)]
    assert f"0 to {most:.3g}, the largest here" in " ".join(sinks.notes)
    assert "The strip on the left is the sink's share of each row, which is no token's." in sinks.notes


def greys(drawn: Picture) -> list[bool]:
    return [shape.colour == QUIET for shape in drawn.shapes if isinstance(shape, Words) and shape.font == picture.MONO]


@pytest.mark.parametrize("order", [1, -1])
def test_a_token_is_grey_where_none_of_the_chosen_heads_may_read_it(order: int) -> None:
    calls = [random_call(MASKS["window of 1"]), random_call(MASKS["causal"])][::order]
    both = recording_of(*(replace(call, layer=layer) for layer, call in enumerate(calls)))
    assert greys(figure_of_text(both)) == [False] * 7
    assert greys(figure_of_text(both, 3)) == [False] * 4 + [True] * 3
    window = 0 if order == 1 else 1
    assert greys(figure_of_text(both, layer=window)) == [True] * 6 + [False]
    per_head = recording_of(random_call(MASKS["another map a head"]))
    for head in range(6):
        may = MASKS["another map a head"].explicit
        assert may is not None
        assert greys(figure_of_text(per_head, layer=0, head=head)) == (~may[head, 6]).tolist()


def test_of_several_executions_text_and_weights_are_of_the_one_that_was_named() -> None:
    for repeat, patches in enumerate((9, 4)):
        drawn = figure_of_text(towers(), part="vision", repeat=repeat)
        assert len(greys(drawn)) == patches
        assert any(f"position {patches - 1} " in note for note in drawn.notes)


@pytest.mark.parametrize("length", [7, 300])
def test_where_a_sink_has_all_there_is_a_picture_of_zeros(length: int) -> None:
    q = np.ones((2, length, 4), np.float32)
    empty = recording_of(call_of(q, q, sinks=np.full(2, 300, np.float32)), letters="a" * length)
    for drawn in (figure_of_map(empty, 0, 0), figure_of_text(empty), figure_of_heads(empty)):
        assert "<svg" in drawn.svg()
    if length > 256:  # of fewer the strip shows the sink's shares, and the scale runs to them
        assert any("linear, 0 to 1, though all are 0" in note for note in figure_of_map(empty, 0, 0).notes)


def test_heads_by_kind_and_by_a_figure(recording: Recording) -> None:
    answer = list(wherefrom.heads(recording))
    drawn = figure_of_heads(recording)
    repeats = repeats_of(recording, recording.calls[0])
    kinds = [kind_of({name: own for name, own in row.items() if own is not None}, repeats).name for row in answer]
    signs = [shape.text for shape in drawn.shapes if isinstance(shape, Words) and shape.bold]
    assert signs[: len(kinds)] == [SIGNS[kind] for kind in kinds]
    assert {f"{kind} {kinds.count(kind)}" for kind in kinds} <= set(words(drawn))
    entropy = figure_of_heads(recording, "entropy")
    values = [row["entropy"] for row in answer]
    fills = [shape.fill for shape in entropy.shapes if isinstance(shape, Area)][: len(values)]
    assert fills == [ramp()[int(value / max(values) * 255 + 0.5)] for value in values]
    assert f"Colour: entropy, nats, linear, 0 to {max(values):.3g}; nothing is clipped." in entropy.notes
    with pytest.raises(InputError, match=r"what heads are coloured by: expected kind, entropy, .*, got 'colour'"):
        figure_of_heads(recording, "colour")


def test_a_text_glows_by_what_is_read(recording: Recording) -> None:
    drawn = figure_of_text(recording, 5, layer=0)
    values = {row["source"]: row["weight"] for row in wherefrom.sources(recording, 5, layer=0, top=7)}
    tokens = [shape for shape in drawn.shapes if isinstance(shape, Words) and shape.font == picture.MONO]
    assert [shape.text for shape in tokens] == list("abcabca")
    for position, shape in enumerate(tokens[:6]):
        expected = ramp(BEHIND_TEXT)[int(values[position] / max(values.values()) * 255 + 0.5)]
        assert colour_at(drawn, shape.x + 1, shape.y - 5) == expected
    assert [shape.bold for shape in tokens] == [at == 5 for at in range(7)]
    assert tokens[6].colour != tokens[5].colour  # it may not be read
    said = " ".join(drawn.notes)
    assert "Grey: it may not read this." in said
    assert 'Which sources does position 5 ("c") read?' in said


def test_a_text_glows_by_what_moved(recording: Recording) -> None:
    """Added up over heads, by the vectors themselves: a W_O v, whose length `lengths_of` finds without making them."""
    with pytest.raises(InputError, match="moved: expected a recording that keeps the layers' output projections"):
        figure_of_text(recording, 5, lens="moved")
    with pytest.raises(InputError, match="the lens: expected weight or moved, got 'knockout'"):
        figure_of_text(recording, 5, lens="knockout")
    rng = np.random.default_rng(11)
    calls = []
    for call in recording.calls:
        output = rng.normal(size=(len(call.head_numbers), 10, call.v.shape[-1])).astype(np.float32)
        calls.append(replace(call, output=output))
    recording = replace(recording, calls=tuple(calls))
    expected = np.zeros(7)
    for call in calls:
        for place, head in enumerate(call.head_numbers):
            weights = wherefrom.weights(recording, layer=call.layer, head=head, destinations=range(5, 6)).values[0]
            vectors = call.v[call.key_heads[place]] @ call.output[place].T
            expected += weights.filled(0.0) * np.linalg.norm(vectors, axis=1)
    drawn = figure_of_text(recording, 5, lens="moved")
    tokens = [shape for shape in drawn.shapes if isinstance(shape, Words) and shape.font == picture.MONO]
    for position, shape in enumerate(tokens[:6]):
        step = int(expected[position] / max(expected) * 255 + 0.5)
        assert colour_at(drawn, shape.x + 1, shape.y - 5) == ramp(BEHIND_TEXT, "moved")[step]
    said = " ".join(drawn.notes)
    largest = f"linear, 0 to {max(expected):.3g}, the largest here"
    assert f"what it moves, the length |a W_O v|, {largest}" in said
    assert 'How much does each source move to position 5 ("c")? sum over 12 heads (2 layers x 6)' in said
    assert drawn.title == 'What moves to position 5, "c"'
    assert "moved, length" in " ".join(words(drawn))
    one = " ".join(figure_of_text(recording, 5, layer=0, head=0, lens="moved").notes)
    assert 'How much does each source move to position 5 ("c")? layer 0, head 0' in one


@pytest.mark.parametrize("lens", ["knockout", "attribution"])
def test_a_text_glows_by_what_sources_are_worth(lens: str) -> None:
    model = small_model("llama")
    recording = wherefrom.record(model, "the bridge was closed because it was old")
    at = len(recording) - 3
    found = evidence_at(model, recording, at, target=5, scope=wherefrom.Scope((1,)), carried_sources=0)
    values = found.nats if lens == "knockout" else found.prices
    assert values is not None
    most = float(np.nanmax(np.abs(values)))
    assert np.nanmin(values) < 0 < np.nanmax(values)
    drawn = figure_of_evidence(found, lens=lens)
    tokens = [shape for shape in drawn.shapes if isinstance(shape, Words) and shape.font == picture.MONO]
    colours = ramp(BEHIND_TEXT, lens)
    for position, shape in enumerate(tokens[: at + 1]):
        step = math.floor((1 + values[position] / most) / 2 * 255 + 0.5)
        assert colour_at(drawn, shape.x + 1, shape.y - 5) == colours[step]
    assert colours[0] != colours[255]
    assert colours[127] == colours[128] == "#ffffff"
    said = " ".join(drawn.notes)
    assert f"linear, -{most:.3g} to {most:.3g}, the largest here" in said
    assert "all heads of layer 1" in said
    assert ("not measured" in said) == (lens == "attribution")
    assert found.aim.label in drawn.title
    with pytest.raises(InputError, match="the lens: expected knockout or attribution, got 'weight'"):
        figure_of_evidence(found, lens="weight")
    if lens == "attribution":
        with pytest.raises(InputError, match=r"the estimate: expected one, got none\. Too long\."):
            figure_of_evidence(replace(found, prices=None, why_not_priced="Too long."), lens=lens)


def test_the_command_measures_what_sources_are_worth(tmp_path: Path) -> None:
    recorded = typed(tmp_path, "record", "The capital of Italy is", "--out", tmp_path / "italy.wherefrom")
    assert recorded.code == 0, recorded.err
    file = tmp_path / "italy.wherefrom"
    ended = figure(file, "text", "worth.svg", "--lens", "knockout", "--layer", 17, "--target", " Rome")
    assert ended.code == 0, ended.err
    assert 'What sources are worth to " Rome" at position 4, " is"' in ended.out
    assert "all heads of layer 17" in ended.out
    assert (tmp_path / "worth.svg").read_text(encoding="utf-8").startswith("<svg ")
    for arguments, sentence in (
        (("--lens", "knockout", "--scale", "log"), "--scale: expected options of figure text --lens knockout: --dest"),
        (("--target", "x"), "got one of another figure. Leave it out, or ask for --lens attribution or knockout."),
        (("--lens", "knockout", "--destination", 0), "expected one that reads another position, got 0"),
    ):
        refused = figure(file, "text", "no.svg", *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert sentence in refused.err
    assert not (tmp_path / "no.svg").exists()


def test_lines_of_a_text_are_broken_at_blanks(recording: Recording) -> None:
    words_of = ["It", " ra", "ined", ",", " and", " the", " lan", "tern", "-", "ma", "kers", " slept", ".", "\n", "So"]
    long = recording_of(random_call(MASKS["causal"], length=15 * 12), letters="abc" * 60)
    drawn = figure_of_text(replace(long, tokens=tokens_of(*words_of * 12)))
    lines: dict[float, str] = {}
    for shape in drawn.shapes:
        if isinstance(shape, Words) and shape.font == picture.MONO:
            lines[shape.y] = lines.get(shape.y, "") + shape.text
    written = list(lines.values())
    assert "".join(written) == "".join(map(readable, words_of)) * 12
    assert all(len(line) <= 84 for line in written)
    assert all(line.startswith((" ", "So", "It")) for line in written)
    unbroken = figure_of_text(replace(long, tokens=tokens_of(*["abc"] * 180)))
    longest = max(shape.x for shape in unbroken.shapes if isinstance(shape, Words) and shape.font == picture.MONO)
    assert longest < 16 + 84 * 14  # what has no blank is broken where there is no room


def test_of_a_very_long_text_it_says_what_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wherefrom.views.glowing.MOST_TOKENS", 40)
    long = recording_of(random_call(MASKS["causal"], length=60), letters="ab" * 30)
    drawn = figure_of_text(long, 50)
    row = next(iter(wherefrom.weights(long, layer=0, head=0, destinations=range(50, 51)).values))
    assert len(row) == 60
    beside = sum(r["weight"] for r in wherefrom.sources(long, 50, top=60) if r["source"] < 11)
    assert f"Not shown: the first 11 and the last 9 of 60 tokens, with {beside:.3g} of the weight." in drawn.notes
    assert not any("left out" in note for note in drawn.notes)
    shown = [shape for shape in drawn.shapes if isinstance(shape, Words) and shape.font == picture.MONO]
    assert len(shown) == 40


@pytest.fixture
def hostile(recording: Recording) -> Recording:
    return replace(recording, tokens=tokens_of(*HOSTILE))


def test_tokens_are_inert_and_readable(hostile: Recording) -> None:
    for drawn in (figure_of_map(hostile, 0, 0), figure_of_text(hostile)):
        svg = drawn.svg()
        root = ElementTree.fromstring(svg)
        assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
            *("svg", "title", "desc", "defs", "pattern", "path", "circle", "rect", "text")
        }
        assert not any(name.startswith("on") or "href" in name for one in root.iter() for name in one.attrib)
        assert "\u202e" not in svg
        text = "".join(one.text or "" for one in root.iter(f"{SVG}text"))
        assert "中文" in text
        assert "\\u200b\\u202e" in text
    assert "</text><script>alert(1)</script>" in text
    assert "אבג" in text


def test_what_does_not_print_is_escaped_wherever_it_stands() -> None:
    svg = Picture("a\u202e<", ("\x00&",), 10, 10, (Words(0, 0, "\x1b\u202e>"),)).svg()
    root = ElementTree.fromstring(svg)
    assert [root.find(f"{SVG}{tag}").text for tag in ("title", "desc", "text")] == [
        "a\\u202e<",
        "\\x00&",
        "\\x1b\\u202e>",
    ]


def test_an_svg_is_the_same_every_time(recording: Recording) -> None:
    drawn = figure_of_map(recording, 0, 2)
    assert drawn.svg() == figure_of_map(recording, 0, 2).svg() == drawn._repr_svg_()
    root = ElementTree.fromstring(drawn.svg())
    assert root.find(f"{SVG}title").text == drawn.title == "Weights of head 2 of layer 0, by hand"
    assert root.find(f"{SVG}desc").text == " ".join(drawn.notes)
    assert (float(root.get("width")), float(root.get("height"))) == (drawn.width, drawn.height)
    for shape in drawn.shapes:  # nothing lies beyond the picture
        for x, y, wide, high in shape.boxes if isinstance(shape, Area) else ():
            assert 0 <= x <= x + wide <= drawn.width
            assert 0 <= y <= y + high <= drawn.height


def test_a_png_shows_the_same(recording: Recording) -> None:
    drawn = figure_of_map(recording, 0, 2)
    image = Image.open(io.BytesIO(drawn.png()))
    assert image.size == (round(2 * drawn.width), round(2 * drawn.height))
    left, top, wide, high = frame(drawn)
    for row in range(7):
        x, y = left + wide / 14, top + (row + 0.5) * high / 7  # sources of the first column are all permitted
        assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((2 * x, 2 * y))) == colour_at(drawn, x, y)
    hatched = image.crop(tuple(round(2 * part) for part in (left + 5 * wide / 7, top, left + wide, top + high / 7)))
    assert len(hatched.getcolors()) > 1


def test_a_png_draws_no_box_in_a_letters_place(hostile: Recording, tmp_path: Path) -> None:
    drawn = figure_of_text(hostile)
    with pytest.raises(InputError, match=r"a PNG of this text: expected letters that the fonts here draw, got .*文"):
        drawn.png()
    with pytest.raises(InputError, match="the font: expected a font's file"):
        drawn.png(font=tmp_path / "none.ttf")


def test_colours_are_those_of_the_page() -> None:
    assert [ramp()[at] for at in (0, 1, 64, 128, 255)] == ["#fafafa", "#f5faff", "#a4caf7", "#6599d5", "#003d76"]
    assert [ramp(BEHIND_TEXT)[at] for at in (0, 128, 255)] == ["#ffffff", "#acd1fe", "#54a1f9"]
    assert kind_colours("induction")[0] == oklch(0.5, 0.19, 355.0) == "#ae1a69"


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    save_recording(recording, tmp_path / "hand.wherefrom")
    return tmp_path / "hand.wherefrom"


def figure(file: Path, what: str, out: str, *arguments: object) -> Ended:
    return typed(file.parent, "figure", what, file, file.parent / out, *arguments)


@pytest.mark.parametrize(
    ("what", "options", "made"),
    [
        ("map", {"layer": 1, "head": 3}, figure_of_map),
        ("map", {"layer": 1, "head": 3, "scale": "log"}, figure_of_map),
        ("heads", {"by": "entropy"}, figure_of_heads),
        ("text", {"destination": 3, "layer": 0}, figure_of_text),
    ],
)
def test_the_command(file: Path, recording: Recording, what: str, options: dict[str, object], made: object) -> None:
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    drawn = made(recording, **options)
    ended = figure(file, what, "out.svg", *given)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "\n".join([f"{file.parent / 'out.svg'}: {drawn.title}", *drawn.notes]) + "\n"
    assert (file.parent / "out.svg").read_text(encoding="utf-8") == drawn.svg()
    assert figure(file, what, "out.png", *given).code == 0
    assert (file.parent / "out.png").read_bytes()[:4] == b"\x89PNG"
    again = figure(file, what, "out.png", *given)
    assert (again.code, "replace it with --overwrite" in again.err) == (2, True)
    assert figure(file, what, "out.png", *given, "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("map", "out.gif", "--layer", 0, "--head", 0), "expected a name that ends in .svg or .png"),
        (("map", "out.svg", "--layer", 0), "--head: expected the layer and the head of the map, got none."),
        (("map", "out.svg", "--layer", 2, "--head", 0), "the layer: expected one of 0, 1, got 2."),
        (("map", "out.svg", "--layer", 0, "--head", 9), "the head: expected"),
        (("heads", "out.svg", "--layer", 0), "--layer: expected options of figure heads: --by, --part, --repeat, got"),
        (("heads", "out.svg", "--by", "x"), "what heads are coloured by: expected kind, entropy"),
        (("text", "out.svg", "--destination", 7), "the position: expected a whole number from 0 to 6, got 7."),
        (("text", "none/out.svg"), "expected a folder that is there"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(file: Path, arguments: tuple[object, ...], sentence: str) -> None:
    ended = figure(file, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(r"wherefrom: [^\n]+\n", ended.err)
    assert sentence in ended.err
    assert {path.name for path in file.parent.iterdir()} == {"hand.wherefrom"}
