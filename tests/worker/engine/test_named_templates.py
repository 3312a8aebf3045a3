"""Which of a tokenizer's chat templates renders a conversation: the one that transformers takes."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from shared.errors import InvalidRequest
from shared.ids import ModelId
from tests.worker.engine.samplings import GREEDY
from worker.engine.model import LoadedModel, load_model
from worker.engine.prompt import prepare
from worker.link.orders import LoadModel, SubmitSequence, ToolCallingOptions

_TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
_DEFAULT = f"default:{_TURNS}"
_TOOLS = f"{{% for t in tools %}}({{{{ t.function.name }}}}){{% endfor %}}tools:{_TURNS}"
_NAMED = [
    {"name": "default", "template": _DEFAULT},
    {"name": "tool_use", "template": _TOOLS},
    {"name": "rag", "template": "rag:{{ documents[0] }}"},
]
_MESSAGES = [{"role": "user", "content": "hi"}]
_LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}


def _folder(tiny_model: Path, folder: Path, template: Any) -> Path:
    """A model with this chat template in its tokenizer's config; without any where it is None."""
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    if template is None:
        del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _load(folder: Path) -> LoadedModel:
    return load_model(LoadModel(ModelId("model"), str(folder), tool_format="hermes"))


def _rendered(
    model: LoadedModel,
    messages: Sequence[dict[str, Any]] = _MESSAGES,
    tools: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> str:
    order = SubmitSequence(
        1, ModelId("model"), list(messages), None, None, 8, [], [], GREEDY,
        calling=ToolCallingOptions(list(tools)) if tools else None, **fields,
    )  # fmt: skip
    return str(model.tokenizer.decode(prepare(order, model).prompt_ids))


def _by_transformers(folder: Path, tools: Sequence[dict[str, Any]] = ()) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = [{"type": "function", "function": tool} for tool in tools] or None
    return str(
        tokenizer.apply_chat_template(
            _MESSAGES, tools=given, tokenize=False, add_generation_prompt=True
        )
    )


@pytest.mark.parametrize(
    "template", [_NAMED, {entry["name"]: entry["template"] for entry in _NAMED}]
)
def test_of_named_ones_tool_use_is_for_requests_with_tools_and_default_for_all_others(
    tiny_model: Path, tmp_path: Path, template: Any
) -> None:
    folder = _folder(tiny_model, tmp_path / "model", template)
    model = _load(folder)
    assert _rendered(model) == _by_transformers(folder) == "default:[user]hi"
    with_tools = _rendered(model, tools=[_LOOK])
    assert with_tools == _by_transformers(folder, [_LOOK]) == "(look)tools:[user]hi"
    assert model.warnings == ()
    assert model.abilities == ["tools", "schema", "continuation"]


def test_files_beside_the_tokenizer_count_before_its_config(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = _folder(tiny_model, tmp_path / "model", "config:{{ messages }}")
    (folder / "chat_template.jinja").write_text(_DEFAULT)
    assert _rendered(_load(folder)) == _by_transformers(folder) == "default:[user]hi"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(_TOOLS)
    model = _load(folder)
    assert _rendered(model) == _by_transformers(folder) == "default:[user]hi"
    assert _rendered(model, tools=[_LOOK]) == _by_transformers(folder, [_LOOK])


def test_without_a_default_only_requests_with_tools_are_served_and_that_is_told(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = _folder(tiny_model, tmp_path / "model", {"tool_use": _TOOLS, "rag": _TURNS})
    model = _load(folder)
    assert _rendered(model, tools=[_LOOK]) == "(look)tools:[user]hi"
    with pytest.raises(InvalidRequest, match="none is named default; use prompt"):
        _rendered(model)
    (warning,) = model.warnings
    assert "of its chat templates (rag, tool_use) none is named default" in warning


def test_a_broken_template_for_tools_leaves_other_conversations_alone(
    tiny_model: Path, tmp_path: Path
) -> None:
    named = {"default": _DEFAULT, "tool_use": "{% for %}"}
    model = _load(_folder(tiny_model, tmp_path / "model", named))
    assert _rendered(model) == "default:[user]hi"
    with pytest.raises(InvalidRequest, match="has an error in line 1"):
        _rendered(model, tools=[_LOOK])
    (warning,) = model.warnings
    assert warning.endswith("; requests with tools are rejected, prompts are served")


def test_tools_are_described_as_text_where_the_only_template_knows_none(
    tiny_model: Path, tmp_path: Path
) -> None:
    named = [{"name": "default", "template": _DEFAULT}]
    model = _load(_folder(tiny_model, tmp_path / "model", named))
    text = _rendered(model, tools=[_LOOK])
    assert text.startswith("default:[system]You may call one or more functions")
    assert '"name": "look"' in text and text.endswith("[user]hi")


def test_marks_of_what_is_trained_on_print_what_is_between_them(
    tiny_model: Path, tmp_path: Path
) -> None:
    marked = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{%- generation %}<{{ m.content }}>{% endgeneration %}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}{{ mood }}"
    )
    folder = _folder(tiny_model, tmp_path / "model", marked)
    model = _load(folder)
    turns = [*_MESSAGES, {"role": "assistant", "content": "ho"}, *_MESSAGES]
    text = _rendered(model, turns, template_values={"mood": "!"})
    assert text == "[hi]<ho>[hi]!"
    assert model.warnings == () and "continuation" in model.abilities


def test_values_are_checked_against_the_template_that_is_taken(
    tiny_model: Path, tmp_path: Path
) -> None:
    named = {"default": _DEFAULT, "tool_use": _TOOLS + "{{ mood }}"}
    model = _load(_folder(tiny_model, tmp_path / "model", named))
    order = SubmitSequence(
        1, ModelId("model"), list(_MESSAGES), None, None, 8, [], [], GREEDY,
        template_values={"mood": "!"},
    )  # fmt: skip
    prepared = prepare(order, model)
    assert prepared.sequence is not None
    (warning,) = prepared.sequence.cancel().warnings
    assert warning.startswith("chat_template_kwargs.mood: ")
    assert _rendered(model, tools=[_LOOK], template_values={"mood": "!"}).endswith("hi!")
