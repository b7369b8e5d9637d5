"""ChatTemplate: turns messages into the text a chat model was trained on, by the template in the target's directory.

A draft head is trained on templated text and guesses worse without it.  Templates come from whoever made the
checkpoint, so they run in jinja2's immutable sandbox, set up as transformers does.
Not here: tokenizing, which the server does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.errors import ConfError

Messages = Sequence[Mapping[str, str]]

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """`source` is the Jinja text; `special_tokens` are the tokenizer's, by name, as the template sees them."""

    source: str = field(repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    adds_bos: bool = False
    """The tokenizer puts its bos_token in front of every text, so the template's own is left out."""
    path: str = ""
    """The file it came from, for messages."""

    @classmethod
    def from_directory(cls, path: str | Path) -> ChatTemplate | None:
        """The template of the model in directory `path`; None when there is no such directory or it has none.

        Raises:
            ConfError: a file of the tokenizer is not readable JSON.
        """
        folder = Path(path)
        config = _json_object(folder / "tokenizer_config.json")
        source, origin = _source(folder, config)
        if source is None:
            return None
        tokens = {name: text for name in _SPECIAL_TOKENS if (text := _token_text(config.get(name)))}
        return cls(source, tokens, _adds_bos(folder, config, tokens.get("bos_token")), str(origin))

    def render(self, messages: Messages) -> str:
        """The whole prompt, up to where the assistant is to speak.

        Raises:
            ConfError: the template is broken or refuses these messages.
        """
        try:
            text = self._compiled.render(
                messages=[dict(m) for m in messages], tools=None, documents=None, add_generation_prompt=True,
                **self.special_tokens,
            )  # fmt: skip
        except (jinja2.TemplateError, TypeError) as error:
            raise ConfError([f"{self.path}: the target's chat template failed: {error}"]) from error
        bos = self.special_tokens.get("bos_token")
        return text.removeprefix(bos) if bos and self.adds_bos else text

    @cached_property
    def _compiled(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        return environment.from_string(self.source)

    def __getstate__(self) -> dict[str, Any]:
        """Without the compiled form, which does not travel between processes."""
        return {name: value for name, value in self.__dict__.items() if name != "_compiled"}


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _source(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, Path]:
    """The template's text and its file, in the order in which transformers looks."""
    if (jinja := folder / "chat_template.jinja").is_file():
        return jinja.read_text(encoding="utf-8"), jinja
    beside = folder / "chat_template.json"
    if text := _default_of(_json_object(beside).get("chat_template")):
        return text, beside
    return _default_of(config.get("chat_template")), folder / "tokenizer_config.json"


def _default_of(template: Any) -> str | None:
    """A checkpoint may carry several named templates; the one called default, or the first, is meant."""
    if isinstance(template, list) and template:
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default", next(iter(named.values()), None))
    return template if isinstance(template, str) else None


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _adds_bos(folder: Path, config: Mapping[str, Any], bos: str | None) -> bool:
    """Whether tokenizing a text puts `bos` in front: what the config says, else what tokenizer.json does."""
    if bos is None:
        return False
    if isinstance(stated := config.get("add_bos_token"), bool):
        return stated
    return _starts_with(_json_object(folder / "tokenizer.json").get("post_processor"), bos)


def _starts_with(processor: Any, bos: str) -> bool:
    if not isinstance(processor, dict):
        return False
    if processor.get("type") == "Sequence":
        return any(_starts_with(part, bos) for part in processor.get("processors", []))
    pieces = processor.get("single") or [{}]
    return processor.get("type") == "TemplateProcessing" and pieces[0].get("SpecialToken", {}).get("id") == bos


def _json_object(path: Path) -> dict[str, Any]:
    """The file's object; empty when there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfError([f"{path}: not readable JSON ({error}): is the checkpoint complete?"]) from error
    return found if isinstance(found, dict) else {}
