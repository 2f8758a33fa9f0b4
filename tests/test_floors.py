"""The floors, read from the imports: a room imports only what lies below it, and what is heavy comes last."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import wherefrom

SOURCE = Path(wherefrom.__file__).parent
TOP = "wherefrom"
FLOORS = {
    "errors": 0,
    "checks": 0,
    "folders": 0,
    "mask": 1,
    "attention": 1,
    "readable": 1,
    "spans": 1,
    "tokens": 1,
    "passages": 1,
    "model": 2,
    "recording": 2,
    "scans": 2,
    "capture": 3,
    "questions": 4,
    "evidence": 5,
    "training": 5,
    "views": 6,
    "cli": 7,
    "__main__": 8,
    TOP: 9,  # wherefrom/__init__.py names the verbs of every floor
}
BESIDE = {
    ("checks", "errors"),
    ("attention", "mask"),
    ("spans", "readable"),
    ("tokens", "readable"),
    ("tokens", "spans"),
    ("passages", "readable"),
    ("passages", "spans"),
    ("cli", TOP),
    ("recording", TOP),
}
"""Who may import what does not lie below: the dense page has its masks in a file of their own; cli calls the verbs; a
recording's file names the version that wrote it."""
STRANGERS = {("questions", "model"), ("questions", "capture")}
"""Who may not import what does lie below: a recording is asked without the model, and without torch."""
TYPES_ONLY = {("views", "evidence")}
"""What may be imported for annotations only: a view is handed an answer, it does not run a model."""
WITH_TORCH = "wherefrom.scans.device"
"""The one module below capture, but for the model's, that is made of torch."""
HEAVY = {"torch", "transformers", "polars"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else TOP


def imported(tree: ast.AST, types_only: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield every import of the package in a file, wherever it hides: (room, whether under TYPE_CHECKING)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == TOP:
                    yield room_of(alias.name), types_only
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            if node.module == TOP:
                yield from ((alias.name if alias.name in FLOORS else TOP, types_only) for alias in node.names)
            elif (node.module or "").split(".")[0] == TOP:
                yield room_of(node.module or ""), types_only
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from imported(ast.Module(node.body, []), types_only=True)
            yield from imported(ast.Module(node.orelse, []), types_only)
        else:
            yield from imported(node, types_only)


def wrong(room: str, tree: ast.AST) -> list[str]:
    """Return what a file of a room imports and may not."""
    found = []
    for other, types_only in imported(tree):
        pair = (room, other)
        below = FLOORS[other] < FLOORS[room] or other == room or pair in BESIDE
        if not below or pair in STRANGERS or (pair in TYPES_ONLY and not types_only):
            found.append(other)
    return found


@pytest.mark.parametrize("module", modules())
def test_a_room_imports_only_lower_floors(module: str) -> None:
    assert wrong(room_of(module), ast.parse(modules()[module].read_text(encoding="utf-8"))) == []


def test_every_room_has_a_floor() -> None:
    assert {room_of(module) for module in modules()} == set(FLOORS)


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("model", "from wherefrom.recording import Recording", ["recording"]),
        ("recording", "import wherefrom.model.store as store", ["model"]),
        ("tokens", "def f():\n    from wherefrom.attention import Mask", ["attention"]),
        ("mask", "class C:\n    if TYPE_CHECKING:\n        import wherefrom.attention", ["attention"]),
        ("capture", "try:\n    from wherefrom import evidence, errors\nexcept ImportError: ...", ["evidence"]),
        ("questions", "from wherefrom.capture.recorder import Recorder", ["capture"]),
        ("questions", "from wherefrom.model.config import Config", ["model"]),
        ("views", "from wherefrom.evidence.trace import Trace", ["evidence"]),
        ("views", "if typing.TYPE_CHECKING:\n    from wherefrom.evidence.trace import Trace", []),
        ("views", "if TYPE_CHECKING: ...\nelse:\n    from wherefrom.evidence.trace import Trace", ["evidence"]),
        ("evidence", "import wherefrom", ["wherefrom"]),
        ("evidence", "from wherefrom import trace", ["wherefrom"]),
        ("cli", "import wherefrom\nfrom wherefrom.views.terminal import draw", []),
        ("attention", "from wherefrom.mask import Mask\nimport numpy, torch", []),
    ],
)
def test_hidden_imports_are_seen(room: str, source: str, found: list[str]) -> None:
    assert wrong(room, ast.parse(source)) == found


def loaded_by(*names: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter holds after importing some modules."""
    lines = [f"import {name}" for name in names] + [
        "import sys",
        "print(*{name.split('.')[0] for name in sys.modules})",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_asking_and_drawing_need_no_torch() -> None:
    light = [
        name
        for name in modules()
        if room_of(name) not in {"model", "capture", "evidence", "training", "cli", "__main__"} and name != WITH_TORCH
    ]
    assert {"wherefrom.views.terminal", "wherefrom.questions.asked", "wherefrom.recording"} <= set(light)
    assert loaded_by(*light) & HEAVY == set()


def test_a_compiler_is_loaded_by_nobody_but_the_scans_that_need_one() -> None:
    assert "numba" not in loaded_by("wherefrom.scans", "wherefrom.questions")
    assert "numba" in loaded_by("wherefrom.scans.cpu")


def test_the_package_alone_is_nearly_nothing() -> None:
    assert loaded_by("wherefrom") & {*HEAVY, "numpy", "tokenizers", "rich", "typer"} == set()


def test_heavy_packages_would_be_seen() -> None:
    assert "torch" in loaded_by("wherefrom.capture.recorder")


@pytest.mark.parametrize("name", wherefrom.__all__)
def test_every_public_name_can_be_fetched(name: str) -> None:
    assert getattr(wherefrom, name) is getattr(import_module(wherefrom._HOME_OF[name]), name)
    assert name in dir(wherefrom)


def test_public_names_agree_with_their_homes() -> None:
    homes = [name for names in wherefrom._HOMES.values() for name in names]
    assert sorted(homes) == sorted(set(homes)) == sorted(wherefrom.__all__)
    assert list(wherefrom.__all__) == sorted(wherefrom.__all__)


def test_names_for_type_checkers_agree_with_their_homes() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {node.module: tuple(alias.name for alias in node.names) for node in block.body}
    assert typed == wherefrom._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'whereto'"):
        _ = wherefrom.whereto
