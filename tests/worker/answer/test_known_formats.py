"""The formats of single families: how each is found, what only it can write, and what mlx-lm reads
of the same calls."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from shared.messages.structured import Structure
from tests.worker.answer.families import FAMILIES, read
from tests.worker.answer.test_calls import ARGUMENTS, TOOLS
from tests.worker.answer.test_grammar import Compiled, required
from worker.answer.formats.known import find_tool_format
from worker.answer.grammar import AnswerConstraint, answer_grammar
from worker.answer.reasoning import find_reasoning_format

FAMILY = {family.name: family for family in FAMILIES}

SIGNS = {
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>{% for tc in m.tool_calls %}",
    "minimax_m2": "{%- set begin = '<minimax:tool_call>' -%}<parameter name=\"p\">",
    "deepseek_v3": "tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n'",
    "deepseek_v31": "'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'",
    "deepseek_dsml": '{%- set dsml_token = "｜DSML｜" -%}<{{ dsml_token }}function_calls>',
    "kimi_k2": "{{ '<|tool_calls_section_begin|>' }}{% for tool_call in message.tool_calls %}",
    "seed_oss": "{%- set t = '<seed:tool_call>' -%}<function=f>\n<parameter=p>value_1</parameter>",
    "longcat": "<longcat_tool_call>{name}\n<longcat_arg_key>{key}</longcat_arg_key>",
    "longcat_json": '<longcat_tool_call>\n{"name": <function-name>, "arguments": <args-dict>}',
    "nemotron": '<TOOLCALL>[{{"name": "tool_name1", "arguments": "tool_args1"}}]</TOOLCALL>',
    "lfm2": "List of tools: <|tool_list_start|>[{% for tool in tools %}",
    "cohere": "write <|START_ACTION|> followed by a list of JSON-formatted tool calls",
    "granite": "respond only with <|tool_call|> followed by a JSON list of tools used.",
    "hermes": "<|start_of_role|>{% for tc in m.tool_calls %}<tool_call>\n{{ tc }}\n</tool_call>",
    "minicpm5": '<function name="{{ call.name }}"><param name="{{ key }}">',
    "muse": '<atem:function_calls>\n<atem:invoke name="$FUNCTION_NAME">',
    "function_gemma": "<start_function_call>call:{{ call.name }}{",
    "qwen3_coder": "'<tool_call>\\n<function=' + tool_call.name + '>\\n<parameter='",
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_chat_template_shows_its_format(name: str) -> None:
    assert find_tool_format(SIGNS[name], {}) == name


@pytest.mark.parametrize(
    ("tokens", "tool_format", "reasoning"),
    [
        (["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"], "kimi_k3", "kimi_k3"),
        (["<|open|>", "<|sep|>"], None, None),
        (["<|tool_calls_section_begin|>"], "kimi_k2", None),
        (["｜DSML｜", "<think>", "</think>"], "deepseek_dsml", "think"),
        (["<seed:think>", "</seed:think>"], None, "seed"),
        (["<|tool_call_start|>", "<|tool_call_end|>"], "lfm2", None),
        (["<|tool_call_start|>"], None, None),
        (["<|tool_call|>", "<|/tool_call|>"], "granite", None),
        (
            ["<|START_ACTION|>", "<|END_ACTION|>", "<|END_THINKING|>", "<|END_RESPONSE|>"],
            "cohere",
            "cohere",
        ),
    ],
)
def test_a_vocabulary_shows_the_format_where_the_template_does_not(
    tokens: list[str], tool_format: str | None, reasoning: str | None
) -> None:
    assert find_tool_format("", tokens) == tool_format
    found = find_reasoning_format("", tokens)
    assert (found and found.name) == reasoning


@pytest.mark.parametrize("arguments", ["plain", "nested", "booleans"])
@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("glm", "glm47"),
        ("glm, in one line", "glm47"),
        ("minimax_m2", "minimax_m2"),
        ("longcat", "longcat"),
        ("longcat_json", "longcat"),
        ("kimi_k2", "kimi_k2"),
        ("kimi_k3", "kimi_k3"),
        ("qwen3_coder", "qwen3_coder"),
        ("minicpm5", "minicpm5"),
        ("lfm2", "pythonic"),
        ("gemma4", "gemma4"),
    ],
)
def test_calls_are_read_as_mlx_lm_reads_them(name: str, oracle: str, arguments: str) -> None:
    module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{oracle}")
    text = FAMILY[name].write([("get_weather", ARGUMENTS[arguments])])
    tools = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
        for tool in TOOLS
    ]
    body = text.strip().removeprefix(module.tool_call_start).removesuffix(module.tool_call_end)
    parsed = module.parse_tool_call(body, tools)
    parsed = parsed[0] if isinstance(parsed, list) else parsed
    got = read(FAMILY[name].parser(TOOLS), FAMILY[name].tokens(text))
    assert [(parsed["name"], parsed["arguments"])] == [
        (called, json.loads(written)) for called, written in got.calls
    ]


def test_what_a_tag_calls_a_string_is_one_unless_the_schema_has_none() -> None:
    family = FAMILY["deepseek_dsml"]
    text = family.write([("get_weather", {"city": "3", "days": "3", "anything": "true"})])
    got = read(family.parser(TOOLS), family.tokens(text))
    assert json.loads(got.calls[0][1]) == {"city": "3", "days": 3, "anything": "true"}
    text = text.replace('string="true">3<', 'string="false">"3"<', 1)
    got = read(family.parser(TOOLS), family.tokens(text))
    assert json.loads(got.calls[0][1]) == {"city": "3", "days": 3, "anything": "true"}


def test_arguments_of_kimi_k3_may_be_one_block_of_json() -> None:
    family = FAMILY["kimi_k3"]
    arguments = '{"city": "Paris", "days": 3}'
    call = (
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        f'<|open|>json type="object"<|sep|>{arguments}<|close|>json<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    got = read(family.parser(TOOLS), family.tokens(call))
    assert got.calls == [("get_weather", arguments)]


def test_a_section_of_deepseek_may_lack_its_end() -> None:
    family = FAMILY["deepseek_v3"]
    call = family.write([("now", {})]).removesuffix("<｜tool▁calls▁end｜>")
    assert read(family.parser(TOOLS), family.tokens(call)).calls == [("now", "{}")]


@pytest.mark.parametrize("name", ["glm", "minimax_m2", "seed_oss", "longcat"])
def test_a_value_may_hold_the_tag_that_ends_it(name: str) -> None:
    family = FAMILY[name]
    value = "a</arg_value></parameter></longcat_arg_value>\n<b>"
    text = family.write([("get_weather", {"city": value, "days": 2})])
    got = read(family.parser(TOOLS), family.tokens(text))
    assert [json.loads(arguments) for _, arguments in got.calls] == [{"city": value, "days": 2}]


# Grammars.


@pytest.mark.parametrize("name", ["deepseek_dsml", "kimi_k3"])
def test_the_grammar_of_a_tag_with_a_type_allows_that_type_only(
    name: str, demo_folder: Path
) -> None:
    compiled = Compiled(FAMILY[name], demo_folder)
    right = {"city": "5", "days": 3, "units": "C"}
    for arguments in (right, {**right, "city": 5}, {**right, "days": "3"}):
        text = FAMILY[name].write([("get_weather", arguments)])
        assert compiled.accepts(required(compiled), text) == (arguments == right)


def test_content_and_calls_of_kimi_k3_may_stand_in_its_frame(demo_folder: Path) -> None:
    compiled = Compiled(FAMILY["kimi_k3"], demo_folder)
    thought = "<|open|>think<|sep|>Hm.<|close|>think<|sep|>"
    opens, closes = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
    calls = required(compiled)
    call = FAMILY["kimi_k3"].write([("now", {})])
    assert compiled.accepts(calls, f"{thought}{opens}{closes}{call}")
    assert compiled.accepts(calls, call)
    assert not compiled.accepts(calls, f"{thought}{opens}Yes.{closes}{call}")
    choice = Structure("choice", ["yes", "no"], "response_format")
    bound = AnswerConstraint(choice, [], False, False, opened=False, thinks=True)
    content = answer_grammar(compiled.format, bound)
    assert compiled.accepts(content, f"{thought}{opens}yes{closes}")
    assert compiled.accepts(content, "no")
    assert not compiled.accepts(content, f"{thought}{opens}maybe{closes}")


def test_function_gemma_is_read_as_mlx_lm_reads_it_where_it_reads_it() -> None:
    """Its parser knows neither objects nor lists."""
    module: Any = importlib.import_module("mlx_lm.tool_parsers.function_gemma")
    text = FAMILY["function_gemma"].write([("get_weather", ARGUMENTS["plain"])])
    got = read(FAMILY["function_gemma"].parser(TOOLS), FAMILY["function_gemma"].tokens(text))
    assert module.parse_tool_call(text) == {
        "name": got.calls[0][0],
        "arguments": json.loads(got.calls[0][1]),
    }


@pytest.mark.parametrize("value", ["a</param></function>]]>\n<b>", " spaces ", "]]>", "<![CDATA["])
def test_a_value_of_minicpm5_is_what_stands_in_its_cdata(value: str) -> None:
    family = FAMILY["minicpm5"]
    text = family.write([("get_weather", {"city": value, "days": 2})])
    got = read(family.parser(TOOLS), family.tokens(text))
    assert [json.loads(arguments) for _, arguments in got.calls] == [{"city": value, "days": 2}]


@pytest.mark.parametrize(
    ("value", "allowed"),
    [("Paris", True), ("<![CDATA[Paris]]>", True), ("<![CDATA[a<b&c]]>", True), ("a<b", False)],
)
def test_the_grammar_of_minicpm5_has_cdata_where_xml_needs_it(
    value: str, allowed: bool, demo_folder: Path
) -> None:
    compiled = Compiled(FAMILY["minicpm5"], demo_folder)
    text = FAMILY["minicpm5"].write([("get_weather", {"city": "CITY", "units": "C"})])
    assert compiled.accepts(required(compiled), text.replace("CITY", value)) == allowed
