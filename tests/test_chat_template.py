"""Messages become text as the target's own template says, whoever wrote that template."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfError
from orchestrator.measuring.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello <b>"}]
CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)


def directory(path: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    """A model directory with a tokenizer_config.json and other files, by stem (JSON unless text)."""
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for stem, content in files.items():
        name = f"{stem}.jinja" if isinstance(content, str) else f"{stem}.json"
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rendered(path: Path) -> str:
    template = ChatTemplate.from_directory(path)
    assert template is not None
    return template.render(HELLO)


def test_chatml(tmp_path: Path) -> None:
    """The template of the tokenizer's config is filled up to where the assistant speaks, and nothing is escaped."""
    directory(tmp_path, {"chat_template": CHATML})

    assert rendered(tmp_path) == "<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n"


def test_a_template_file_goes_before_the_config(tmp_path: Path) -> None:
    """As in transformers, chat_template.jinja wins over tokenizer_config.json."""
    directory(tmp_path, {"chat_template": "config"}, chat_template="file: {{ messages[0].content }}")

    assert rendered(tmp_path) == "file: Hello <b>"


def test_named_templates(tmp_path: Path) -> None:
    """Of several named templates the one called default is taken."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    directory(tmp_path, {"chat_template": named})

    assert rendered(tmp_path) == "plain"


def test_no_template(tmp_path: Path) -> None:
    """A directory without a template, an empty one, and one that is not there have no chat template."""
    directory(tmp_path, {"bos_token": "<s>"})

    found = [ChatTemplate.from_directory(tmp_path / name) for name in (".", "nothing here")]

    assert found == [None, None]


@pytest.mark.parametrize(
    ("config", "post_processor", "expected"),
    [
        ({"add_bos_token": True}, None, "Hi"),
        ({"add_bos_token": False}, None, "<s>Hi"),
        ({}, None, "<s>Hi"),
        ({}, {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}]}, "Hi"),
        ({}, {"type": "TemplateProcessing", "single": [{"Sequence": {}}]}, "<s>Hi"),
        (
            {},
            {
                "type": "Sequence",
                "processors": [
                    {"type": "ByteLevel"},
                    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},
                ],
            },
            "Hi",
        ),
    ],
)
def test_the_first_token_is_not_doubled(
    tmp_path: Path, config: dict[str, Any], post_processor: dict[str, Any] | None, expected: str
) -> None:
    """A bos_token that the tokenizer adds by itself is left out of the text; one that it does not add stays."""
    config = {**config, "bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}Hi"}
    directory(tmp_path, config, tokenizer={"post_processor": post_processor})

    assert rendered(tmp_path) == expected


def test_what_templates_use(tmp_path: Path) -> None:
    """tojson keeps letters as they are, strftime_now and loop controls exist, and generation marks vanish."""
    source = (
        "{{ {'é': '<'} | tojson }} {{ strftime_now('%Y') | length }}"
        "{% for m in messages %}{% generation %}!{% endgeneration %}{% break %}{% endfor %}"
    )
    directory(tmp_path, {}, chat_template=source)

    assert rendered(tmp_path) == '{"é": "<"} 4!'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{% if %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ 1 + '' }}",
    ],
)
def test_a_template_that_fails_or_breaks_out(tmp_path: Path, source: str) -> None:
    """A refusal, a syntax error and an attempt to change or escape anything are a ConfError naming the file."""
    directory(tmp_path, {}, chat_template=source)

    with pytest.raises(ConfError, match=r"chat_template\.jinja"):
        rendered(tmp_path)


def test_a_broken_config(tmp_path: Path) -> None:
    """A tokenizer_config.json that was not copied whole is named."""
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": ')

    with pytest.raises(ConfError, match="tokenizer_config"):
        ChatTemplate.from_directory(tmp_path)


def test_it_travels_between_processes(tmp_path: Path) -> None:
    """A template that was used can be sent to another process and does the same there."""
    template = ChatTemplate.from_directory(directory(tmp_path, {"chat_template": CHATML}))
    assert template is not None
    before = template.render(HELLO)

    assert pickle.loads(pickle.dumps(template)).render(HELLO) == before  # noqa: S301
