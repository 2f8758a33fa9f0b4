"""Scans of recordings: what is kept beside a file is used again only if it is of these arrays and as it was written."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wherefrom
from by_hand import MASKS, keeping, random_call, recording_of
from kinds import small_model
from wherefrom import InputError, Mask, heads, received, save_recording, scan
from wherefrom.questions import row_of_weights, scanned
from wherefrom.recording import Recording

WANTED = ("entropy", "received", "readers", "last_reader", "top", "zoom")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The statistics that were really computed, call by call."""
    seen: list[tuple[str, ...]] = []
    inner = scanned.scan_attention

    def counting(attention, names, **how):
        seen.append(tuple(names))
        return inner(attention, names, **how)

    monkeypatch.setattr(scanned, "scan_attention", counting)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Recording:
    calls = (random_call(MASKS["causal"]), random_call(MASKS["causal"], layer=1, seed=12))
    return wherefrom.open_recording(save_recording(recording_of(*calls, letters="abcabca"), tmp_path / "x.wherefrom"))


def weights_of(recording: Recording, layer: int) -> np.ndarray:
    call = recording.call(layer)
    return np.stack([np.asarray(row_of_weights(call, row)) for row in range(call.destinations)], axis=1)  # H T S


def test_what_every_source_receives_is_the_sum_of_its_column(file: Recording) -> None:
    weights = weights_of(file, 1)
    found = scan(file, 1, ["received", "readers", "last_reader"], threshold=0.2)
    assert np.abs(found["received"] - weights.sum(axis=1)).max() < 1e-6
    assert np.array_equal(found["readers"], (weights >= 0.2).sum(axis=1))
    last = np.where((weights >= 0.2).any(axis=1), 6 - (weights >= 0.2)[:, ::-1].argmax(axis=1), -1)
    assert np.array_equal(found["last_reader"].filled(-1), last)
    answer = received(file, top=3, threshold=0.2)
    mean = np.concatenate([weights_of(file, layer) for layer in (0, 1)]).sum(axis=1).mean(axis=0)
    assert [row["source"] for row in answer] == np.argsort(-mean)[:3].tolist()
    assert [row["received"] for row in answer] == pytest.approx(sorted(mean, reverse=True)[:3])
    assert answer.remainder == pytest.approx(np.sort(mean)[:-3].sum())
    assert "4 more sources" in answer.left_out
    assert "7 destinations give 7.0000 in all" in answer.left_out
    one = received(file, layer=1, head=2, top=7)
    assert {row["source"]: row["received"] for row in one} == pytest.approx(dict(enumerate(weights[2].sum(axis=0))))
    assert {(row["layer"], row["head"]) for row in one} == {(1, 2)}


def test_only_what_is_missing_is_computed(file: Recording, counted: list[tuple[str, ...]]) -> None:
    first = scan(file, 0, ["entropy", "received"])
    again = scan(wherefrom.open_recording(file.path), 0, ["received", "entropy"])
    assert counted == [("entropy", "received")]
    assert np.array_equal(first["received"], again["received"])
    scan(file, 0, ["entropy", "largest"])
    assert counted[1:] == [("largest",)]
    assert set(scan(file, 0, ["largest"]).names) >= {"entropy", "received", "largest"}
    scan(file, 1, ["entropy"])
    assert counted[2:] == [("entropy",)]


def test_another_threshold_or_top_is_computed_again(file: Recording, counted: list[tuple[str, ...]]) -> None:
    scan(file, 0, WANTED)
    found = scan(file, 0, WANTED, threshold=0.5, top=2)
    assert counted[1:] == [("readers", "last_reader", "top")]
    assert found.strongest.ids.shape == (6, 7, 2)
    assert found.threshold == 0.5
    assert np.array_equal(found["readers"], (weights_of(file, 0) >= 0.5).sum(axis=1))
    scan(file, 0, WANTED, threshold=0.5, top=2)
    assert len(counted) == 2


@pytest.mark.parametrize("damage", ["bits", "truncated", "empty", "another call's", "another recording's"])
def test_what_is_not_as_it_was_written_is_computed_again(
    damage: str, file: Recording, counted: list[tuple[str, ...]], tmp_path: Path
) -> None:
    right = np.array(scan(file, 0, ["received"])["received"])
    kept = file.path / "scans" / "decoder-self-000.safetensors"
    data = bytearray(kept.read_bytes())
    if damage == "bits":
        data[-5] ^= 1
    elif damage == "truncated":
        data = data[:-9]
    elif damage == "empty":
        data = bytearray()
    elif damage == "another call's":
        scan(file, 1, ["received"])
        data = bytearray((file.path / "scans" / "decoder-self-001.safetensors").read_bytes())
    else:
        other = recording_of(random_call(MASKS["causal"], seed=99), letters="abcabca")
        elsewhere = wherefrom.open_recording(save_recording(other, tmp_path / "y.wherefrom"))
        scan(elsewhere, 0, ["received"])
        data = bytearray((elsewhere.path / "scans" / "decoder-self-000.safetensors").read_bytes())
    kept.write_bytes(data)
    before = len(counted)
    assert np.array_equal(scan(file, 0, ["received"])["received"], right)
    assert len(counted) == before + 1
    scan(file, 0, ["received"])  # and now it is kept again
    assert len(counted) == before + 1


def test_what_a_killed_process_left_is_swept(file: Recording) -> None:
    (file.path / "scans").mkdir()
    (file.path / "scans" / ".decoder-self-000.safetensors.deadbeef").write_bytes(b"half")
    scan(file, 0, ["received"])
    assert [path.name for path in (file.path / "scans").iterdir()] == ["decoder-self-000.safetensors"]


def test_a_folder_that_cannot_be_written_to_keeps_nothing(file: Recording, counted: list[tuple[str, ...]]) -> None:
    (file.path / "scans").write_text("a file where the folder would be")
    for _ in range(2):
        scan(file, 0, ["received"])
    assert len(counted) == 2


def test_a_recording_with_scans_is_whole_and_can_be_replaced(file: Recording) -> None:
    scan(file, 0, WANTED)
    assert wherefrom.verify_recording(file.path).recording.tokens.text == "abcabca"
    other = recording_of(random_call(MASKS["causal"], seed=99), letters="cbacbac")
    save_recording(other, file.path, overwrite=True)
    assert not (file.path / "scans").exists()


def test_a_recording_in_memory_keeps_nothing(counted: list[tuple[str, ...]]) -> None:
    recording = recording_of(random_call(MASKS["causal"]))
    for _ in range(2):
        scan(recording, 0, ["received"])
    assert len(counted) == 2


@pytest.mark.parametrize("mask", MASKS)
def test_a_part_of_the_heads(mask: str) -> None:
    whole = random_call(MASKS[mask])
    part = keeping(whole, [1, 4, 5], list(range(7)))
    found, expected = (scan(recording_of(call), 0, WANTED) for call in (part, whole))
    for name in ("entropy", "received", "readers"):
        assert np.abs(found[name] - expected[name][[1, 4, 5]]).max() < 1e-12
    shown = heads(replace(recording_of(whole), calls=(part,)))
    assert [row["head"] for row in shown] == [1, 4, 5]


def test_cross_attention(tmp_path: Path) -> None:
    model = small_model("marian")
    for to in (None, tmp_path / "x.wherefrom"):
        recording = wherefrom.record(model, "to be read", written="so far", to=to)
        call = recording.call(1, "cross")
        weights = np.stack([np.asarray(row_of_weights(call, row)) for row in range(call.destinations)], axis=1)
        assert np.abs(scan(recording, 1, ["received"], kind="cross")["received"] - weights.sum(axis=1)).max() < 1e-5
        assert len(received(recording, kind="cross", top=4)) == 4
        with pytest.raises(InputError, match="duplicate"):
            scan(recording, 1, ["duplicate"], kind="cross")


WRONG = [
    (lambda r: scan(r, 2, ["entropy"]), "the layer: expected one of 0, 1, got 2"),
    (lambda r: scan(r, 0, ["sharpness"]), "what is wanted: expected a name that a scan knows, got 'sharpness'"),
    (lambda r: scan(r, 0, []), "what is wanted: expected at least one name"),
    (lambda r: scan(r, 0, ["sink"]), 'a scan for "sink": expected a call with sink logits'),
    (lambda r: scan(r, 0, ["readers"], threshold=0), "the threshold: expected a number above 0 and at most 1, got 0"),
    (lambda r: scan(r, 0, None), "what is wanted: expected names of statistics, got None"),
    (lambda r: scan(r, 0, ["readers"], threshold=2), "the threshold: expected a number above 0 and at most 1, got 2"),
    (lambda r: scan(r, 0, ["top"], top=0), "the number of strongest sources: expected a whole number from 1 up, got 0"),
    (lambda r: scan(r.calls, 0, ["top"]), "the recording: expected a Recording, got a value of type tuple"),
    (lambda r: received(r, top=0), "top: expected a whole number from 1 up, got 0"),
    (lambda r: received(r, head=6), "the head: expected a whole number from 0 to 5, got 6"),
    (
        lambda r: received(replace(r, calls=(keeping(random_call(Mask()), [0], [3]),))),
        "the recording: expected every destination, since the question is about all of them, got 1 of 7 in layer 0",
    ),
]


@pytest.mark.parametrize(("ask", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_scan_that_cannot_be_made(ask, sentence: str, file: Recording) -> None:
    for _ in range(2):  # with nothing kept, and with something
        with pytest.raises(InputError, match=re.escape(sentence)):
            ask(file)
        scan(file, 0, ["entropy"])


def test_what_was_kept_is_of_the_call_and_not_of_the_place(tmp_path: Path) -> None:
    one, other = (recording_of(random_call(Mask(), seed=seed), letters="abcabca") for seed in (1, 2))
    place = save_recording(one, tmp_path / "x.wherefrom")
    old = wherefrom.open_recording(place)
    wherefrom.sources(old)  # its arrays are loaded
    save_recording(other, place, overwrite=True)
    right = [np.array(scan(each, 0, ["received"])["received"]) for each in (one, other)]
    assert np.abs(right[0] - right[1]).max() > 0.1
    for _ in range(2):
        for recording, expected in ((old, right[0]), (wherefrom.open_recording(place), right[1])):
            assert np.abs(scan(recording, 0, ["received"])["received"] - expected).max() < 1e-12
    windowed = replace(old, calls=(random_call(Mask(window=2), seed=1),))  # the path is still that of the file
    assert np.abs(scan(windowed, 0, ["received"])["received"] - right[0]).max() > 0.1
    assert np.abs(scan(wherefrom.open_recording(place), 0, ["received"])["received"] - right[1]).max() < 1e-12


def test_a_damaged_threshold_is_seen(file: Recording) -> None:
    scan(file, 0, ["readers"])
    kept = file.path / "scans" / "decoder-self-000.safetensors"
    assert b"0.05" in kept.read_bytes()
    kept.write_bytes(kept.read_bytes().replace(b"0.05", b"0.15"))
    expected = (weights_of(file, 0) >= 0.15).sum(axis=1)
    assert np.array_equal(scan(file, 0, ["readers"], threshold=0.15)["readers"], expected)


def test_a_disk_that_is_full_keeps_nothing(file: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert scan(file, 0, ["received"])["received"].shape == (6, 7)
    assert list((file.path / "scans").iterdir()) == []


def test_a_pipe_is_not_waited_for(file: Recording) -> None:
    (file.path / "scans").mkdir()
    os.mkfifo(file.path / "scans" / "decoder-self-000.safetensors")
    assert scan(file, 0, ["received"])["received"].shape == (6, 7)


def test_more_sources_than_there_are_take_no_room(file: Recording) -> None:
    found = scan(file, 0, "top", top=10**9)
    assert (found.strongest.ids.shape, found.top) == ((6, 7, 7), 7)
    assert repr(found) == "Scan(top; 6 heads, 7 x 7 positions)"
