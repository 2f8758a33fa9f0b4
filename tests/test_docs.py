"""Every page of the documentation is run: its examples in one session from top to bottom, its links, its index."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LONG = ("answers", "carriers", "faithfulness", "routes", "transformers", "weights")
"""Pages that take long."""
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:src|docs|tests|examples|benchmarks|scripts)/[\w./-]+)`")


def run(page: Path) -> doctest.TestResults:
    """Run a page's examples in one namespace; what is wrong is printed, the first failure in full."""
    flags = doctest.REPORT_ONLY_FIRST_FAILURE | doctest.REPORT_UDIFF  # later failures mostly follow from the first
    return doctest.testfile(str(page), module_relative=False, globs={}, encoding="utf-8", optionflags=flags)


def broken_links(page: Path) -> list[str]:
    """Return the relative links, and the project's files named in code, that lead nowhere."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if "://" not in link and not link.startswith(("#", "mailto:"))]
    found = {link: page.parent / link.partition("#")[0] for link in links}
    found |= {name: ROOT / name for name in NAMED_FILE.findall(text)}
    return [link for link, target in found.items() if not target.exists()]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long) if page.stem in LONG else page for page in PAGES],
    ids=lambda page: page.name,
)
def test_a_page_prints_what_it_shows(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(page)
    assert results.attempted > 0
    assert results.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_an_example(page: Path) -> None:
    """A block of code without prompts would be shown and never run."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    assert [block for block in blocks if not block.startswith(">>> ")] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_names_every_file() -> None:
    linked = set(LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    assert {path.name for path in DOCS.iterdir() if path.name != "README.md"} <= linked


def test_the_commands_of_the_index_run(tmp_path: Path) -> None:
    """`python -m doctest PAGE`, and the line that goes on in a session of one's own, on a page that is quick."""
    commands = re.findall(r'^python (-m doctest|-i -c "(?:.*?)")', (DOCS / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 2
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> x = 6\n>>> x * 7\n42\n\n```\n", encoding="utf-8")
    code = commands[1].removeprefix('-i -c "').removesuffix('"').replace("docs/one-token.md", str(page))
    for arguments in (["-m", "doctest", str(page)], ["-c", f"{code}; assert x == 6"]):
        ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


BROKEN = {
    "another answer": ">>> 6 * 7\n41\n\n",
    "an error": ">>> 1 / 0\n\n",
    "another error": '>>> int("x")\nTraceback (most recent call last):\n    ...\nValueError: another message\n\n',
    "an answer that is not shown": ">>> 6 * 7\n\n",
    "a name of another page": ">>> print(model)\nmodel\n\n",
    "no blank line before the fence": ">>> 6 * 7\n42\n",
}


@pytest.mark.parametrize("block", BROKEN.values(), ids=BROKEN)
def test_a_broken_page_fails(block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n```python\n>>> 1 + 1\n2\n\n```\n\n```python\n{block}```\n", encoding="utf-8")
    assert run(page) == (1, 2)
    assert "Failed example" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="Failed example"):
        test_a_page_prints_what_it_shows(page, capsys)


def test_a_page_without_examples_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nprint(42)\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        test_a_page_prints_what_it_shows(page, capsys)
    with pytest.raises(AssertionError):
        test_every_python_block_is_an_example(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "[a](there.md) [b](there.md#part) [c](not.md) [d](https://example.org) [e](#part) `src/not.py` `src/`"
    page.write_text(f"{text}\n```python\n>>> made[0](missing.md)\n```\n", encoding="utf-8")
    (tmp_path / "there.md").touch()
    assert broken_links(page) == ["not.md", "src/not.py"]
