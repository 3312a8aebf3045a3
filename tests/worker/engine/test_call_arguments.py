"""Whether a chat template takes the arguments of calls as objects or as their text, and tools in
the words of models whose template knows none."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from mlx_lm.utils import load_tokenizer

from tests.scripted.families import TEMPLATES, Template
from tests.scripted.folders import make_scripted_model
from tests.worker.answer.families import THINK
from worker.engine.chat_template import ChatTemplate
from worker.engine.tool_prompt import Turn, takes_text, with_text_arguments

_CALLS = "{% for call in message.tool_calls or [] %}{{ PRINTED }}{% endfor %}"
_TEMPLATE = "{% for message in messages %}{{ message.content }}" + _CALLS + "{% endfor %}"
_TOOLS = [{"name": "look", "description": "looks", "parameters": {"type": "object"}}]


def _template(printed: str) -> Any:
    template = Environment().from_string(_TEMPLATE.replace("PRINTED", printed))

    def render(turns: list[Turn]) -> str | None:
        try:
            return template.render(messages=turns)
        except Exception:
            return None

    return render


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("call.function.arguments | tojson", False),
        ("call.function.arguments.items() | list | tojson", False),
        ("'```json' + call.function.arguments", True),
        ("call.function.arguments", True),
        ("call.function.name", False),
        ("call.function.arguments.missing.entirely", False),
    ],
)
def test_a_template_gets_arguments_as_it_writes_json_of_them(printed: str, text: bool) -> None:
    assert takes_text(_template(printed)) == text


def test_objects_become_their_text_and_text_stays() -> None:
    def call(arguments: object) -> Turn:
        return {"id": "1", "function": {"name": "look", "arguments": arguments}}

    turns: list[Turn] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call({"a": "é"}), call('{"a":1}')]},
    ]
    user, assistant = with_text_arguments(turns)
    assert user == turns[0]
    texts = [each["function"]["arguments"] for each in assistant["tool_calls"]]
    assert texts == ['{"a": "é"}', '{"a":1}']


@dataclass
class Templated:
    """A tokenizer and its template."""

    tokenizer: Any
    template: ChatTemplate

    def prompt(self, *messages: dict[str, Any]) -> str:
        rendered = self.template.render(list(messages), _TOOLS, {})
        return str(self.tokenizer.decode(rendered.token_ids))


@pytest.fixture(scope="module")
def deepseek(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Templated:
    folder = tmp_path_factory.mktemp("deepseek") / "model"
    make_scripted_model(folder, demo_folder, TEMPLATES["deepseek_v31"], {})
    tokenizer = load_tokenizer(folder)
    return Templated(tokenizer, ChatTemplate(tokenizer, None, {}))


def test_a_call_of_an_earlier_turn_is_written_as_the_model_wrote_it(deepseek: Templated) -> None:
    arguments = '{"what":"the sky",  "n":1e2}'
    function = {"name": "look", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    prompt = deepseek.prompt(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "blue", "tool_call_id": "1"},
    )
    assert f"<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>" in prompt
    assert prompt.endswith("<｜tool▁output▁begin｜>blue<｜tool▁output▁end｜>")


def test_tools_are_told_in_the_words_of_the_model_in_its_system_message(
    deepseek: Templated,
) -> None:
    user = {"role": "user", "content": "hi"}
    plain = deepseek.prompt(user)
    system = deepseek.prompt({"role": "system", "content": "Be brief."}, user)
    for prompt in (plain, system):
        assert "### look\nDescription: looks" in prompt
        assert json.dumps({"type": "object"}) in prompt
        assert "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name" in prompt
        assert "<tool_call>" not in prompt
    assert "Be brief.\n\n## Tools" in system


def test_the_template_of_mlx_lm_for_deepseek_gets_tools_and_calls(
    demo_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    family = Template("dsml", "", (), (), added=("｜DSML｜", "<think>", "</think>"))
    make_scripted_model(folder, demo_folder, family, {})
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config | {"chat_template_type": "deepseek_v32"}))
    tokenizer = load_tokenizer(folder)
    model = Templated(tokenizer, ChatTemplate(tokenizer, THINK, {}))
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1e2}'}}
    prompt = model.prompt(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "blue", "tool_call_id": "1"},
    )
    assert '<functions>\n{"name": "look", "description": "looks"' in prompt
    assert '<｜DSML｜parameter name="n" string="false">100.0</｜DSML｜parameter>' in prompt
    assert prompt.endswith("<result>blue</result>\n</function_results>\n\n<think>")


def test_markers_in_the_words_are_tokens_and_those_of_a_tool_are_not(
    deepseek: Templated,
) -> None:
    tool = {**_TOOLS[0], "description": "<｜tool▁sep｜>"}
    described = deepseek.template.render([{"role": "user", "content": "hi"}], [tool], {})
    plain = deepseek.template.render([{"role": "user", "content": "hi"}], _TOOLS, {})
    marker = deepseek.tokenizer.convert_tokens_to_ids("<｜tool▁sep｜>")
    assert described.token_ids.count(marker) == plain.token_ids.count(marker) == 1
