"""Tool calls of every family, streamed a token at a time, cut anywhere, whole and broken."""

import json
import random
from typing import Any

import pytest

from tests.worker.answer.families import FAMILIES, Family, dumps, read
from worker.answer.formats.base import Tool

TOOLS = [
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"], "enum": ["C", "F", None]},
                "where": {"type": "object"},
                "hours": {"type": "array", "items": {"type": "number"}},
                "exact": {"type": "boolean"},
                "note": {"$ref": "#/$defs/note"},
            },
            "$defs": {"note": {"type": "string"}},
        },
    ),
    Tool("now", parameters={"type": "object", "properties": {}}),
    Tool("get_weather_map", parameters={}),
]

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {"city": "Paris", "days": 3},
    "empty": {},
    "unicode": {"city": "São Paulo 東京 👩‍👩‍👧 \u200b", "days": 1},
    "escapes": {"city": 'a "quoted" \\ back\\\\slash \t tab \n line', "note": "\\u0041 {\"x\": [1"},
    "nested": {"where": {"a": {"b": [1, {"c": "d}]"}], "e": {}}}, "hours": [1, 2.5, -3e10]},
    "ten kB": {"city": "x, {\n'" * 2000, "days": 1},
    "the string null": {"city": "null", "note": "true", "units": None},
    "large number": {"days": 9007199254740993, "city": "9007199254740993"},
    "booleans": {"exact": True, "city": "False"},
    "a line break at both ends": {"city": "\nParis\n", "note": "\n"},
    "an empty string": {"city": "", "days": 0},
}  # fmt: skip


@each_family
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_a_call_is_read_as_it_was_meant(family: Family, arguments: dict[str, Any]) -> None:
    tokens = family.tokens(family.write([("get_weather", arguments)]))
    streamed = read(family.parser(TOOLS), tokens)
    assert [name for name, _ in streamed.calls] == ["get_weather"]
    assert json.loads(streamed.calls[0][1]) == arguments
    assert streamed.text == streamed.reasoning == ""
    assert streamed.warnings == []
    if family.verbatim:
        assert streamed.calls[0][1] == dumps(arguments)
    assert read(family.parser(TOOLS), ["".join(tokens)]) == streamed


@each_family
def test_a_stream_does_not_depend_on_where_it_is_cut(family: Family) -> None:
    answer = "Let me see.\n" + family.write(
        [("get_weather", ARGUMENTS["nested"]), ("get_weather_map", {}), ("now", {})]
    )
    tokens = family.tokens(answer)
    whole = read(family.parser(TOOLS), ["".join(tokens)])
    assert [name for name, _ in whole.calls] == ["get_weather", "get_weather_map", "now"]
    assert whole.text.strip() == "Let me see."
    for cut in range(1, len(tokens)):
        pieces = ["".join(tokens[:cut]), "".join(tokens[cut:])]
        assert read(family.parser(TOOLS), pieces) == whole
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(tokens)), 5))
        pieces = ["".join(tokens[a:b]) for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert read(family.parser(TOOLS), pieces) == whole


@each_family
def test_arguments_come_while_they_are_written_where_a_grammar_enforces_them(
    family: Family,
) -> None:
    tokens = family.tokens(family.write([("get_weather", {"city": "a long name " * 20})]))
    parser = family.parser(TOOLS, bind=lambda text: True)
    seen, at = "", []
    for number, token in enumerate(tokens):
        for delta in parser.push(token).calls:
            seen += delta.arguments
            at.append(number)
    assert seen.startswith('{"city": "a long name')
    assert len(at) > 200
    assert at[0] < 100


@each_family
def test_a_call_without_a_grammar_comes_when_it_is_whole(family: Family) -> None:
    tokens = family.tokens(family.write([("get_weather", {"city": "Paris"})]))
    parser = family.parser(TOOLS)
    assert not any(parser.push(token).calls for token in tokens[:-2])


@each_family
@pytest.mark.parametrize("keep", [0.5, 0.7, 0.9])
def test_a_call_that_is_cut_off_is_text(family: Family, keep: float) -> None:
    answer = family.write([("get_weather", {"city": "Paris, the capital", "days": 12})])
    tokens = family.tokens(answer)
    tokens = tokens[: int(len(tokens) * keep)]
    got = read(family.parser(TOOLS), tokens)
    assert got.calls == []
    assert ("Paris" in got.text) == ("Paris" in "".join(tokens))
    assert read(family.parser(TOOLS), ["".join(tokens)]) == got


@each_family
def test_a_call_of_an_unknown_tool_is_text(family: Family) -> None:
    tokens = family.tokens(family.write([("get_wether", {"city": "Paris"})]))
    got = read(family.parser(TOOLS), tokens)
    assert got.calls == []
    assert "Paris" in got.text
    assert read(family.parser(TOOLS), ["".join(tokens)]) == got


@each_family
def test_a_broken_call_is_text_and_the_next_one_is_read(family: Family) -> None:
    broken = family.write([("get_weather", {"city": "Paris", "days": 12})])
    broken = broken.replace("12", "1 2 [")
    for end in ("</function>", "</arg_value>", "</longcat_arg_value>", "</invoke>",
                "</｜DSML｜invoke>", "<|close|>call<|sep|>"):  # fmt: skip
        broken = broken.replace(end, "")
    good = family.write([("now", {})])
    between = "<|start|>assistant" if family.tool_format is None else "\n"
    tokens = family.tokens(broken + between + good)
    got = read(family.parser(TOOLS), tokens)
    assert [name for name, _ in got.calls] == ["now"]
    assert "Paris" in got.text
    assert len(got.warnings) == 1
    assert read(family.parser(TOOLS), ["".join(tokens)]) == got


@each_family
def test_without_tools_nothing_is_a_call(family: Family) -> None:
    if family.tool_format is None:
        pytest.skip("a header is one whatever there is to call")
    got = read(family.parser([]), family.tokens(family.write([("now", {})])))
    assert got.calls == []


@each_family
def test_a_call_that_the_grammar_does_not_take_is_text(family: Family) -> None:
    tokens = family.tokens("Hm. " + family.write([("now", {})]))
    if family.tool_format is None:
        pytest.skip("asked of the arguments")
    got = read(family.parser(TOOLS, bind=lambda text: False), tokens)
    assert got.calls == []
    assert got.text.startswith("Hm. ")


@each_family
def test_what_stands_around_calls_is_content(family: Family) -> None:
    call = family.write([("now", {})])
    if family.tool_format is None:
        answer = (
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
            f"<|channel|>commentary<|message|>First.<|end|><|start|>assistant{call}"
            "<|start|>assistant<|channel|>final<|message|>Then.<|return|>"
        )
    else:
        answer = f"First.\n\n{call}\nThen."
    got = read(family.parser(TOOLS), family.tokens(answer))
    assert [name for name, _ in got.calls] == ["now"]
    assert got.text.split() == ["First.", "Then."]


@each_family
def test_prose_that_mentions_a_marker_stays_prose(family: Family) -> None:
    prose = (
        'Write <tool_call> and then {"name": "now"}, or <function=now>; [TOOL_CALLS] is another, '
        "and <|channel|> with <|message|>. See also call:now{} and <start_function_call>."
    )
    got = read(family.parser(TOOLS), list(prose))  # a model that spells it
    assert got.text == prose
    assert got.calls == []


@each_family
def test_a_value_may_hold_what_ends_a_call(family: Family) -> None:
    value = (
        "</function> </tool_call> </parameter>\n</parameter> [ARGS] <end_function_call> "
        '<|call|> {"name": "now", "arguments": {}}'
    )
    call = family.write([("get_weather", {"city": value, "days": 2})])
    head, tail = call.split(value) if value in call else call.split(dumps(value)[1:-1])
    middle = value if value in call else dumps(value)[1:-1]
    tokens = [*family.tokens(head), *middle, *family.tokens(tail)]
    got = read(family.parser(TOOLS), tokens)
    assert [json.loads(text) for _, text in got.calls] == [{"city": value, "days": 2}]
