"""Answers of Muse: messages with headers, calls as tags within them."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tool_parsers.muse_spark import parse_tool_call

from shared.messages.structured import Structure
from tests.worker.answer import test_grammar
from tests.worker.answer.families import Family, WeatherCall, dumps, read
from tests.worker.answer.test_calls import ARGUMENTS, TOOLS
from tests.worker.answer.test_grammar import Compiled
from worker.answer.control import AddedToken, ControlTokenCodec
from worker.answer.grammar import AnswerConstraint, answer_grammar, section_grammars
from worker.answer.model_output_format import find_format
from worker.answer.muse import MuseParser
from worker.answer.parser import Bind

TOKENS = {text: AddedToken(1000 + number, True) for number, text in enumerate(MuseParser.markers)}
CONTROL = ControlTokenCodec(TOKENS, MuseParser.markers)
NEXT = "<|eom|><|start|>assistant"
THOUGHT = f" to=self<|message|>Hm, 2 < 3.{NEXT}"


def write(calls: Sequence[WeatherCall]) -> str:
    """As Muse Glimmer's chat template writes them."""

    def value(argument: Any) -> str:
        return argument if isinstance(argument, str) else dumps(argument)

    return NEXT.join(
        f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
        + "".join(
            f'<atem:parameter name="{key}">{value(argument)}</atem:parameter>\n'
            for key, argument in arguments.items()
        )
        + "</atem:invoke>\n</atem:function_calls>"
        for name, arguments in calls
    )


MUSE = Family("muse", None, write, dict.fromkeys(MuseParser.markers, True), verbatim=False)


def tokens(text: str) -> list[str]:
    found = re.findall("|".join(map(re.escape, TOKENS)) + "|.", text, re.DOTALL)
    return [CONTROL.encode(each) for each in found]


def parser(*, bind: Bind | None = None) -> MuseParser:
    return MuseParser(CONTROL, TOOLS, bind=bind)


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_a_call_is_read_as_it_was_meant(arguments: dict[str, Any]) -> None:
    text = write([("get_weather", arguments)])
    streamed = read(parser(), tokens(text))
    assert [(name, json.loads(written)) for name, written in streamed.calls] == [
        ("get_weather", arguments)
    ]
    assert (streamed.text, streamed.reasoning, streamed.warnings) == ("", "", [])
    assert read(parser(), ["".join(tokens(text))]) == streamed


@pytest.mark.parametrize("name", ["plain", "nested", "unicode"])
def test_calls_are_read_as_mlx_lm_reads_them(name: str) -> None:
    text = write([("get_weather", ARGUMENTS[name])])
    parsed = parse_tool_call(text)
    got = read(parser(), tokens(text))
    assert [(parsed["name"], parsed["arguments"])] == [
        (called, json.loads(written)) for called, written in got.calls
    ]


def test_messages_are_told_apart_wherever_the_stream_is_cut() -> None:
    answer = tokens(
        f"{THOUGHT}{write([('get_weather', ARGUMENTS['nested']), ('now', {})])}"
        f"{NEXT} to=commentary<|message|>First.{NEXT} to=user<|message|>Yes.<|eot|>"
    )
    whole = read(parser(), ["".join(answer)])
    assert (whole.reasoning, whole.text) == ("Hm, 2 < 3.", "First.\n\nYes.")
    assert [name for name, _ in whole.calls] == ["get_weather", "now"]
    for cut in range(1, len(answer)):
        assert read(parser(), ["".join(answer[:cut]), "".join(answer[cut:])]) == whole
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(answer)), 5))
        pieces = ["".join(answer[a:b]) for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert read(parser(), pieces) == whole


def test_arguments_come_while_they_are_written_where_a_grammar_enforces_them() -> None:
    streaming = parser(bind=lambda text: True)
    pieces = [
        call.arguments
        for token in tokens(write([("get_weather", {"city": "a long name " * 20})]))
        for call in streaming.push(token).calls
    ]
    assert len(pieces) > 200
    assert json.loads("".join(pieces)) == {"city": "a long name " * 20}


def test_an_answer_may_go_on_with_a_message_of_the_prompt() -> None:
    assert read(parser(), tokens("is nine.<|eot|>")).text == "is nine."


@pytest.mark.parametrize(
    "broken",
    [
        write([("get_wether", {"city": "Paris"})]),
        write([("get_weather", {"city": "Paris"})])[:-40],
        write([("get_weather", {"city": "Paris"})]).replace("</atem:invoke>", ""),
        " to=get_weather<|message|>Paris, please",
    ],
)
def test_what_is_no_call_is_text_and_the_next_one_is_read(broken: str) -> None:
    got = read(parser(), tokens(f"{broken}{NEXT}{write([('now', {})])}<|eot|>"))
    assert [name for name, _ in got.calls] == ["now"]
    assert "Paris" in got.text
    assert len(got.warnings) == 1


def test_thinking_that_is_cut_off_stays_reasoning() -> None:
    got = read(parser(), tokens(" to=self<|message|>Hm, 2"))
    assert (got.reasoning, got.text) == ("Hm, 2", "")


def test_a_template_or_a_vocabulary_shows_it() -> None:
    assert find_format("<atem:function_calls>", TOKENS).messages is MuseParser
    assert find_format("", TOKENS).messages is MuseParser
    assert find_format("<atem:function_calls>", {}).messages is None


# Grammars.


@pytest.fixture(scope="module")
def compiled(demo_folder: Path) -> Compiled:
    return Compiled(MUSE, demo_folder, MuseParser)


def bound(*, structure: Structure | None = None, parallel: bool = True) -> AnswerConstraint:
    tools = test_grammar.TOOLS if structure is None else []
    return AnswerConstraint(
        structure, tools, structure is None, parallel, opened=False, thinks=True
    )


def test_calls_that_the_tools_allow_are_allowed_and_no_others(compiled: Compiled) -> None:
    grammar = answer_grammar(compiled.format, bound())
    for call in test_grammar.CALLS:
        assert compiled.accepts(grammar, f"{THOUGHT}{write([call])}"), call
    for call in test_grammar.WRONG:
        if call[1].get("city") != 5:  # without quotes a 5 may be a string
            assert not compiled.accepts(grammar, write([call])), call
    two = write(test_grammar.CALLS[:2])
    assert compiled.accepts(grammar, two)
    assert not compiled.accepts(answer_grammar(compiled.format, bound(parallel=False)), two)


def test_what_follows_the_header_of_a_call_has_the_same_grammar(compiled: Compiled) -> None:
    sections = section_grammars(compiled.format, test_grammar.TOOLS, parallel=False)
    for name, arguments in test_grammar.CALLS:
        body = write([(name, arguments)]).removeprefix(f" to={name}<|message|>")
        assert compiled.accepts(sections[name], body)
    assert not compiled.accepts(sections["now"], body.replace("now", "get_weather"))


def test_content_that_is_bound_is_a_message_to_the_user(compiled: Compiled) -> None:
    structure = Structure("json", {"type": "object", "required": ["x"]}, "response_format")
    grammar = answer_grammar(compiled.format, bound(structure=structure))
    assert compiled.accepts(grammar, f'{THOUGHT} to=user<|message|>{{"x": 1}}')
    assert not compiled.accepts(grammar, f"{THOUGHT} to=user<|message|>{{}}")
