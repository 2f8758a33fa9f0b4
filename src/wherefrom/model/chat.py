"""Chat messages, written out as the text that a model was trained to answer (floor 2).

Takes errors and checks from below. Gives `ChatTemplate` to `checkpoint` and `language` beside it, and the check of
messages to capture. A template is a program of Jinja that comes with the model's files: it runs in Jinja's sandbox,
which keeps it from changing anything and from everything that is not in the messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from wherefrom.checks import check_items
from wherefrom.errors import InputError
from wherefrom.readable import readable

HALF = re.compile("[\ud800-\udfff]")
DEFAULT = "default"
"""The name of the template that is used where a model has several."""
MARKS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
"""Tokens that a template may name."""
_NOT_GIVEN = {"tools": None, "documents": None, "add_generation_prompt": True}
"""What a template may ask for beside the messages: a name that it does not know is not the same as None."""
ROLES = "Use the roles that the template knows, in its order: mostly user and assistant in turn."


@dataclass(frozen=True)
class ChatTemplate:
    """How a model's conversations are written.

    Attributes:
        source: the template, in Jinja's language, with what the transformers library adds to it.
        marks: the texts of the tokens that it may name, such as "eos_token".
    """

    source: str
    marks: Mapping[str, str] = field(default_factory=dict)

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a conversation's text, up to where the model's answer begins.

        Args:
            messages: each with a "role" ("user", "assistant", ...) and a "content".

        Raises:
            InputError: messages of another form, or ones that the template refuses.
        """
        given = check_messages(messages)
        try:
            return str(_compiled(self.source).render(messages=given, **_NOT_GIVEN, **self.marks))
        except Exception as error:  # a template is a program: whatever it raises is its word on these messages
            raise refused(error) from error


def template_of(config: Mapping[str, Any], source: str | None = None) -> ChatTemplate | None:
    """Return the chat template that a checkpoint's files hold; None where they hold none.

    Args:
        config: what tokenizer_config.json says: its "chat_template" may be one, or several with a name each, of which
            the default one is taken.
        source: what chat_template.jinja holds, where there is one: it comes before the other.
    """
    chosen = _named(config.get("chat_template")) if source is None else source
    if chosen is None:
        return None
    written = {name: _content(config.get(name)) for name in MARKS}
    return ChatTemplate(chosen, {name: text for name, text in written.items() if text is not None})


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Return chat messages, if they are some.

    Raises:
        InputError: none, a single one, or one without a role or a content.
    """
    way_out = 'One message is {"role": "user", "content": "Hello"}.'
    what, expected = "the messages", 'a list of messages, each with a "role" and a "content"'
    given = () if isinstance(messages, Mapping) else check_items(what, messages, expected=expected, way_out=way_out)
    if not given:
        shown = "a single one" if isinstance(messages, Mapping) else "none"
        raise InputError(what, expected=expected, given=shown, way_out=way_out)
    for place, message in enumerate(given):
        wrong = _wrong_with(message)
        if wrong is None:
            _require_unicode(message, place)
            continue
        expected = 'a mapping with a "role" and a "content"'
        raise InputError(f"message {place}", expected=expected, given=wrong, way_out=way_out, message=place)
    return [dict(message) for message in given]


def _require_unicode(message: Mapping[str, Any], place: int) -> None:
    """Refuse a message with half a character in its text, for which no template is to blame."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [message["role"], *(part.get("text") if isinstance(part, Mapping) else part for part in parts)]
    for text in texts:
        half = HALF.search(text) if isinstance(text, str) else None
        if half is not None:
            given = f"half a character, \\u{ord(half[0]):04x}, at character {half.start()}"
            way_out = 'Read the text as UTF-8, for example with open(path, encoding="utf-8").'
            raise InputError(f"message {place}", expected="Unicode", given=given, way_out=way_out, message=place)


def without_template(given: str) -> InputError:
    """Return the error for messages to a model whose template is not known."""
    return InputError(
        "the chat",
        expected="a model with a chat template",
        given=given,
        way_out="Write the prompt as a text, or load the model's instruction-tuned version.",
    )


def refused(error: Exception) -> InputError:
    """Return the error for messages that a template does not take."""
    return InputError(
        "the chat",
        expected="messages that the model's chat template takes",
        given=f"ones that it refuses ({_sentence(error)})",
        way_out=ROLES,
    )


def _compiled(source: str) -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation()]
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _generation() -> Any:
    """Return the extension that reads ``{% generation %}``, which marks what the model wrote and adds no text."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012, as its base class declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(inside).set_lineno(line)

    return Generation


def _as_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **how: Any) -> str:
    """Return JSON as templates expect it: Jinja's own escapes the signs of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **how)


def _named(found: Any) -> str | None:
    """Return the template of a configuration, of several the default one."""
    if isinstance(found, list):
        several = [one for one in found if isinstance(one, dict)]
        found = next((one.get("template") for one in several if one.get("name") == DEFAULT), None)
    return found if isinstance(found, str) and found else None


def _content(found: Any) -> str | None:
    """Return a token's text, which may stand alone or in a mapping that says how it is read."""
    found = found.get("content") if isinstance(found, dict) else found
    return found if isinstance(found, str) else None


def _wrong_with(message: Any) -> str | None:
    """Return what is wrong with the form of a message, None if nothing is."""
    if not isinstance(message, Mapping):
        return f"a value of type {type(message).__name__}"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        return 'one without a "role"' if role is None else f'a "role" of type {type(role).__name__}'
    if content is None:
        return None if message.get("tool_calls") else 'one without a "content"'
    if not isinstance(content, str | list | tuple):
        return f'a "content" of type {type(content).__name__}'
    wrong = [] if isinstance(content, str) else [part for part in content if not isinstance(part, str | Mapping)]
    return f'a "content" with a value of type {type(wrong[0]).__name__} in it' if wrong else None


def _sentence(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return readable(first)[:200].rstrip(".")
