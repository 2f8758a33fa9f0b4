"""Chat messages for the project's own models: written out by the template in their files, as transformers does it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.test_answered import typed
from transformers import AutoTokenizer

import wherefrom
from wherefrom.errors import InputError, ModelError
from wherefrom.model.chat import ChatTemplate, template_of
from wherefrom.model.language import LanguageModel, read_prompt
from wherefrom.model.store import default_folder

MESSAGES = [{"role": "user", "content": "Where is the <Colosseum>? In one word."}]
TALK = [
    {"role": "system", "content": "Be brief."},
    *MESSAGES,
    {"role": "assistant", "content": "Rome"},
    {"role": "user", "content": "And the Louvre?"},
]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return wherefrom.load()


@pytest.mark.parametrize("messages", [MESSAGES, TALK, tuple(TALK)])
def test_a_conversation_is_read_as_the_library_reads_it(model: LanguageModel, messages: Any) -> None:
    theirs = AutoTokenizer.from_pretrained(default_folder())
    read = read_prompt(model, messages)
    assert read.text == theirs.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    assert list(read.ids) == theirs.apply_chat_template(list(messages), add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize(
    "source",
    [
        "{%- for m in messages %}\n  {%- if loop.index0 is odd %}{% continue %}{% endif %}\n{{ m.content | trim }}"
        "{% endfor %}",
        "{% for m in messages %}{{ m | tojson }}|{{ m.content | tojson(indent=1) }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% break %}"
        "{% endfor %}",
        "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{{ strftime_now('%Y') }}{% if tools is none and documents is none %}none{% endif %}"
        "{{ add_generation_prompt }}",
    ],
)
def test_what_templates_use_is_there(source: str) -> None:
    """Against the library's own rendering of the same template."""
    theirs = AutoTokenizer.from_pretrained(default_folder())
    marks = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    own = template_of({"chat_template": source, **marks})
    assert own is not None
    assert own.text(TALK) == theirs.apply_chat_template(
        TALK, chat_template=source, tokenize=False, add_generation_prompt=True
    )


def test_a_template_keeps_out_of_everything_else() -> None:
    with pytest.raises(InputError, match=r"the chat: expected messages that the model's chat template takes.*unsafe"):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").text(MESSAGES)
    with pytest.raises(InputError, match=r"that it refuses \(no system here\)"):
        ChatTemplate("{{ raise_exception('no system here') }}").text(TALK)
    with pytest.raises(InputError, match="that it refuses"):
        ChatTemplate("{{ messages.append(1) }}").text(MESSAGES)
    with pytest.raises(InputError, match="that it refuses"):
        ChatTemplate("{% if %}").text(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], 'the messages: expected a list of messages, each with a "role" and a "content", got none'),
        ([MESSAGES[0], 3], 'message 1: expected a mapping with a "role" and a "content", got a value of type int'),
        ([3], "the prompt: expected a text (str), got a value of type list"),
        ([{"role": "user"}], 'got one without a "content"'),
        (MESSAGES[0], "the prompt: expected a text"),
    ],
)
def test_messages_of_another_form_are_refused(model: LanguageModel, messages: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_prompt(model, messages)
    assert sentence in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The built-in model's folder, whose small files may be changed."""
    made = tmp_path / "copy"
    made.mkdir()
    for file in default_folder().iterdir():
        if file.suffix == ".safetensors":
            (made / file.name).symlink_to(file)
        else:
            shutil.copy(file, made)
    return made


def test_a_template_stands_in_either_of_two_files(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}yes"}]
    config |= {"chat_template": named, "eos_token": {"content": "<|im_end|>", "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_prompt(wherefrom.load(folder), MESSAGES).text == "<|im_end|>yes"
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    assert read_prompt(wherefrom.load(folder), MESSAGES).text == MESSAGES[0]["content"]
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: expected a template as text"):
        wherefrom.load(folder)


def test_a_model_without_a_template_says_so(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    model = wherefrom.load(folder)
    with pytest.raises(InputError, match="the chat: expected a model with a chat template, got copy, whose files have"):
        wherefrom.record(model, MESSAGES)
    with pytest.raises(InputError, match="the messages: expected"):
        wherefrom.record(model, [])


def test_every_verb_reads_a_conversation(model: LanguageModel, tmp_path: Path) -> None:
    read = read_prompt(model, MESSAGES)
    assert wherefrom.record(model, MESSAGES).tokens == read
    assert len(wherefrom.trace(model, MESSAGES).recording.tokens) == len(read)
    found = wherefrom.trace_answer(model, MESSAGES, "Rome", by=["the <Colosseum>?"], budget=3)
    assert found.tokens.text == read.text + "Rome"
    (tmp_path / "chat.json").write_text(json.dumps(MESSAGES), encoding="utf-8")
    ended = typed(tmp_path, "trace", "--chat", "chat.json", "--write", "3", "--budget", "3")
    assert (ended.code, ended.err) == (0, "")
    assert "Colosseum" in ended.out
