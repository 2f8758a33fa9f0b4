"""The page of the format says what the code does: its tables of arrays, of keys and of refusals."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import fields
from pathlib import Path

import pytest

from recordings import GOLDEN, GOLDENS
from wherefrom.recording import Gap, ModelFacts, Stored
from wherefrom.recording.agreement import CALL, FLOATS, KEPT, OF_PREDICTIONS, OF_TOKENS, OPTIONAL, Form
from wherefrom.recording.gaps import KINDS_OF_GAPS
from wherefrom.recording.layout import UNITS, KeptFacts
from wherefrom.recording.tensors import ALIGNED, Spec, in_order

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first heading begins so."""
    start = PAGE.index(f"| {heading}")
    rows = PAGE[start:].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def shown(*forms: Form) -> tuple[str, str]:
    """A form as the page has it: the kind, and the shapes."""
    kinds = "floats" if forms[0][0] == FLOATS else " or ".join(forms[0][0])
    return kinds, " or ".join(f"[{', '.join(sizes)}]" for _, sizes in forms)


@pytest.mark.parametrize(
    ("heading", "forms"),
    [
        ("in a call's file", {name: (form,) for name, form in (CALL | KEPT).items()} | OPTIONAL),
        ("in tokens.safetensors", {name: (form,) for name, form in OF_TOKENS.items()}),
        ("in predictions.safetensors", {name: (form,) for name, form in OF_PREDICTIONS.items()}),
    ],
)
def test_the_tables_of_arrays(heading: str, forms: dict[str, tuple[Form, ...]]) -> None:
    said = {name.strip("`"): (kind, shape) for name, kind, shape, _ in table(heading)}
    assert said == {name: shown(*each) for name, each in forms.items()}


def test_the_keys_of_the_manifest() -> None:
    content = json.loads((GOLDEN / "everything-2.wherefrom" / "recording.json").read_bytes())
    said = [row[0].strip("`") for row in table("key | value")]
    assert ["crc32", "format", "version", *said] == list(content)
    model = next(row[1] for row in table("key | value") if row[0] == "`model`")
    assert re.findall(r"\w+", model.partition(":")[2]) == [field.name for field in fields(ModelFacts)]
    gap = next(row[1] for row in table("key | value") if row[0] == "`gaps`")
    assert re.findall(r"`(\w+)`", gap) == [field.name for field in fields(Gap)]
    kinds = PAGE[PAGE.index("A gap is a module") : PAGE.index("A call has")]
    assert re.findall(r'"([a-z_ ]+)"', kinds.replace("\n", " ")) == list(KINDS_OF_GAPS)
    assert json.dumps(UNITS) in PAGE
    call = content["calls"][1]
    words = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("A call has") : PAGE.index("## The arrays")]))
    assert (
        set(call) | {field.name for kind in (KeptFacts, Stored) for field in fields(kind)} | set(call["mask"]) <= words
    )


@pytest.mark.parametrize("name", GOLDENS)
def test_the_manifest_is_ascii_in_lines(name: str) -> None:
    data = (GOLDEN / f"{name}.wherefrom" / "recording.json").read_bytes()
    content, lines = json.loads(data), data.decode("ascii").splitlines()
    assert lines[0] == f'{{"crc32": "{zlib.crc32(data[22:]):08x}",'
    assert lines[1] == '"format": "wherefrom recording",'
    assert [line.split('"')[1] for line in lines if line.startswith(' "')] == sorted(content["files"])
    calls = [json.loads(line.rstrip(",")) for line in lines[lines.index('"calls": [') + 1 : -1]]
    assert calls == content["calls"]


@pytest.mark.parametrize("name", GOLDENS)
def test_headers_are_spelt_as_the_page_says(name: str) -> None:
    """Made again from the page's two rules, by other means than the writer's."""
    content = json.loads((GOLDEN / f"{name}.wherefrom" / "recording.json").read_bytes())
    widths = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "BOOL": 1, "U8": 1}
    for file, facts in content["files"].items():
        at, entries = 0, {}
        for array in sorted(facts["tensors"], key=lambda one: (-widths[facts["tensors"][one]["dtype"]], one)):
            entry, size = facts["tensors"][array], widths[facts["tensors"][array]["dtype"]]
            for each in entry["shape"]:
                size *= each
            entries[array] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(entries, separators=(",", ":"))
        data = (GOLDEN / f"{name}.wherefrom" / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert data[8 : 8 + length].decode().rstrip(" ") == text
        assert (8 + length) % ALIGNED == 0
        assert 8 + length - len(text) - 8 < ALIGNED
        assert len(data) == facts["bytes"] == 8 + length + at


def test_every_refusal_of_the_page_is_tested() -> None:
    tested = (ROOT / "tests" / "test_recording_broken.py").read_text(encoding="utf-8")
    tested = re.sub(r'"\s*\n\s*f?"', "", tested)
    sentences = [said for row in table("what is wrong") for said in re.findall("`([^`]+)`", row[1])]
    assert len(sentences) > 20
    assert [said for said in sentences if said not in tested] == []


def test_the_order_of_arrays_is_by_width_then_by_name() -> None:
    kinds = {"a": "U8", "b": "BF16", "c": "F32", "d": "F64", "e": "BOOL", "f": "I64", "g": "F16"}
    assert in_order({name: Spec(kind, (1,)) for name, kind in kinds.items()}) == ["d", "f", "c", "b", "g", "a", "e"]


def test_version_1_lacks_what_the_page_says() -> None:
    first, second = (
        json.loads((GOLDEN / f"{name}.wherefrom" / "recording.json").read_bytes())
        for name in ("everything", "everything-2")
    )
    said = PAGE[PAGE.index("## Version 1") :]
    lacking = {*second} - {*first}, {*second["calls"][1]} - {*first["calls"][1]}
    assert lacking == ({"gaps"}, {"repeat"})
    assert "there are no `gaps`, and\ncalls have no `repeat`" in said


def test_the_files_of_calls_have_the_names_that_the_page_says() -> None:
    content = json.loads((GOLDEN / "towers-2.wherefrom" / "recording.json").read_bytes())
    for call in content["calls"]:
        again = f"-{call['repeat']}" if call["repeat"] else ""
        assert f"calls/{call['part']}-{call['kind']}-{call['layer']:03d}{again}.safetensors" in content["files"]
    assert len(content["files"]) == len(content["calls"]) + 2
