"""JSON that is nested without end, as a command's file: refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherefrom import InputError
from wherefrom.cli.answers import prompt_of


def test_a_chat_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match=r"the chat's file: expected a list of messages.*is none"):
        prompt_of(None, None, chat)
