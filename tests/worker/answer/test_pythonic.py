"""Calls as Python writes them: literals become JSON."""

import ast
import json
from pathlib import Path

import pytest
from mlx_lm.tool_parsers.pythonic import parse_tool_call

from tests.worker.answer.families import FAMILIES, read
from tests.worker.answer.test_grammar import Compiled
from worker.answer.formats.base import Tool
from worker.answer.grammar import section_grammars
from worker.grammar.schemas import arguments_schema

LFM2 = next(family for family in FAMILIES if family.name == "lfm2")
TOOL = Tool("f", parameters={"type": "object"})

LITERALS = [
    "1", "-2.50", "1e-7", "12345678901234567890", "True", "False", "None", "''", '""',
    "'single'", '"double"', "'it\\'s'", '"a \'b\' c"', "'say \"x\"'", "'a\\\\b\\n\\tc\\x41\\u00e9'",
    "'\\U0001F600'", "[]", "{}", "[1, 'a', None, [True]]", "{'a': {'b': [1, 2.5]}, \"c\": 'd'}",
    "[1, 2, ]", "'東京'", "1_000", "0x1F", ".5", "+3",
]  # fmt: skip


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_is_what_python_takes_it_for(literal: str) -> None:
    answer = f"<|tool_call_start|>[f(x={literal}, y = 1)]<|tool_call_end|>"
    got = read(LFM2.parser([TOOL]), LFM2.tokens(answer))
    assert got.warnings == []
    [(name, arguments)] = got.calls
    assert (name, json.loads(arguments)) == ("f", {"x": ast.literal_eval(literal), "y": 1})
    assert parse_tool_call(answer) == {"name": "f", "arguments": json.loads(arguments)}


def test_digits_of_a_number_stay() -> None:
    got = read(LFM2.parser([TOOL]), LFM2.tokens("<|tool_call_start|>[f(x=1.10)]<|tool_call_end|>"))
    assert got.calls == [("f", '{"x": 1.10}')]


def test_words_of_json_are_read_within_objects() -> None:
    answer = '<|tool_call_start|>[f(x={"a": true, "b": null})]<|tool_call_end|>'
    got = read(LFM2.parser([TOOL]), LFM2.tokens(answer))
    assert got.calls == [("f", '{"x": {"a": true, "b": null}}')]


def test_a_backslash_before_any_other_character_is_text() -> None:
    [(_, arguments)] = read(
        LFM2.parser([TOOL]), LFM2.tokens("<|tool_call_start|>[f(x='\\q')]<|tool_call_end|>")
    ).calls
    assert json.loads(arguments) == {"x": "\\q"}


def test_two_halves_of_a_character_are_one() -> None:
    answer = "<|tool_call_start|>[f(x='\\ud83d\\ude00')]<|tool_call_end|>"
    [(_, arguments)] = read(LFM2.parser([TOOL]), LFM2.tokens(answer)).calls
    assert json.loads(arguments) == {"x": "\U0001f600"}


@pytest.mark.parametrize(
    "arguments", ["1", "x", "x=", "x=y", "x=1 y=2", "x=1, x=2", "x='a", "**{}", "x=[1}", "x=\\u12"]
)
def test_what_is_no_call_is_text(arguments: str) -> None:
    got = read(
        LFM2.parser([TOOL]), LFM2.tokens(f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>")
    )
    assert got.calls == []
    assert len(got.warnings) == 1


@pytest.fixture(scope="module")
def compiled(demo_folder: Path) -> Compiled:
    return Compiled(LFM2, demo_folder)


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "boolean"}, ["True", "false"], ["None", "1", "'True'"]),
        ({"type": ["integer", "null"]}, ["7", "None", "null"], ["7.5", "True"]),
        ({"enum": ["it's", 3, None]}, ["'it\\'s'", '"it\'s"', "3", "None"], ["'its'", "4"]),
        ({"type": "string", "maxLength": 2}, ["'ab'", '"\\n"'], ["'abc'", "ab"]),
        ({"type": "string", "pattern": "^[a-c]+$"}, ['"abc"'], ['"abd"', '""']),
        ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1, 2]", "[1,2]"], ["['a']"]),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            ["{'a': 'x'}", '{"a": "x"}'],
            ["{}", "{'b': 'x'}"],
        ),
        ({}, ["{'any': [1, None]}", "'x'", "true"], ["x"]),
    ],
)
def test_a_schema_holds_in_pythons_notation(
    compiled: Compiled, schema: object, allowed: list[str], refused: list[str]
) -> None:
    parameters = arguments_schema({"properties": {"x": schema}, "required": ["x"]})
    tools = [Tool("f", parameters=parameters)]
    grammar = section_grammars(compiled.format, tools, parallel=False)[""]
    for literal in allowed:
        answer = f"<|tool_call_start|>[f(x={literal})]<|tool_call_end|>"
        assert compiled.accepts(grammar, answer), literal
        assert read(LFM2.parser(tools), LFM2.tokens(answer)).calls
    for literal in refused:
        answer = f"<|tool_call_start|>[f(x={literal})]<|tool_call_end|>"
        assert not compiled.accepts(grammar, answer), literal
