"""Where a template may come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.backends.base import BackendInfo
from service.core.request import Chat, ChatMessage, Role
from service.templates import TemplateError, load_template

CHAT = Chat(messages=(ChatMessage(role=Role.USER, content="Hi"),))


def info(**facts: str) -> BackendInfo:
    return BackendInfo(provider="test", features=frozenset(), fingerprint="f", **facts)  # type: ignore[arg-type]


def test_the_models_own_template_is_used_with_the_models_own_tokens() -> None:
    template = load_template(
        "model",
        info(chat_template="{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", bos_text="<s>", eos_text="</s>"),
    )
    assert template.render(CHAT) == "<s>Hi</s>"
    assert template.writes_bos
    assert template.stop_sequences == ()


def test_a_model_without_a_template_is_told_what_to_choose_from() -> None:
    with pytest.raises(TemplateError, match="chatml, gemma, llama3, qa"):
        load_template("model", info())


def test_a_path_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("[{{ messages[0].content }}]")
    assert load_template(str(path), info()).render(CHAT) == "[Hi]"


def test_a_name_that_is_nothing_is_refused_with_what_it_could_be(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"neither a file.*model, chatml"):
        load_template(str(tmp_path / "missing"), info())


def test_a_syntax_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text("\n\n{% if %}")
    with pytest.raises(TemplateError, match=r"bad\.jinja:3: "):
        load_template(str(path), info())


@pytest.mark.parametrize("bos", ["<s>", {"content": "<s>", "lstrip": False}])
def test_a_tokenizer_config_tells_template_and_start_token(tmp_path: Path, bos: object) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": bos}))
    template = load_template(str(path), info())
    assert template.render(CHAT) == "<s>Hi"
    assert template.writes_bos


def test_of_several_templates_in_a_tokenizer_config_the_default_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    path.write_text(json.dumps({"chat_template": named}))
    assert load_template(str(path), info()).render(CHAT) == "yes"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"chat_template": 1}'])
def test_a_tokenizer_config_without_a_template_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(text)
    with pytest.raises(TemplateError, match=r"tokenizer_config\.json"):
        load_template(str(path), info())
