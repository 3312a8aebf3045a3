"""What is said between markers of its own, after what was thought."""

import json
from pathlib import Path

import pytest

from shared.messages.structured import Structure
from tests.worker.answer.families import FAMILIES, Family, read
from tests.worker.answer.test_calls import TOOLS
from tests.worker.answer.test_grammar import Compiled
from worker.answer.grammar import AnswerConstraint, answer_grammar

COHERE = next(family for family in FAMILIES if family.name == "cohere")
GRANITE = next(family for family in FAMILIES if family.name == "granite")

ANSWERS = [
    (COHERE, "<|START_THINKING|>Hm, 2 < 3.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"),
    (COHERE, "<|START_THINKING|>Hm, 2 < 3.<|END_THINKING|>\n<|START_TEXT|>Yes.<|END_TEXT|>"),
    (COHERE, "<|START_THINKING|>Hm, 2 < 3.<|END_THINKING|>Yes."),
    (GRANITE, "<think>Hm, 2 < 3.</think>\n\n<response>\nYes.</response>"),
    (GRANITE, "<think>\nHm, 2 < 3.</think>Yes."),
]
each_answer = pytest.mark.parametrize(
    ("family", "answer"), ANSWERS, ids=[f"{family.name}: {answer}" for family, answer in ANSWERS]
)


@each_answer
def test_markers_of_content_are_no_part_of_it(family: Family, answer: str) -> None:
    got = read(family.parser([]), family.tokens(answer))
    assert (got.reasoning, got.text) == ("Hm, 2 < 3.", "Yes.")


@each_answer
def test_it_does_not_matter_where_the_stream_is_cut(family: Family, answer: str) -> None:
    tokens = family.tokens(answer)
    whole = read(family.parser(TOOLS), tokens)
    for cut in range(len(tokens) + 1):
        pieces = ["".join(tokens[:cut]), "".join(tokens[cut:])]
        assert read(family.parser(TOOLS), pieces) == whole


def test_content_may_stand_between_markers_without_reasoning() -> None:
    answer = "<response>Yes.</response>"
    assert read(GRANITE.parser([]), GRANITE.tokens(answer)).text == "Yes."


@pytest.mark.parametrize(
    "prose",
    [
        "Write\n<response> and </response> around it.",
        "Is </response> one? <response>",
        "<b>Yes.</b>",
    ],
)
def test_spelled_markers_within_content_are_content(prose: str) -> None:
    assert read(GRANITE.parser([]), list(prose)).text == prose
    framed = f"<think>Hm.</think><response>{prose.replace('</response>', '')}</response>"
    assert read(GRANITE.parser([]), list(framed)).text == prose.replace("</response>", "")


@pytest.mark.parametrize("family", [COHERE, GRANITE], ids=lambda family: family.name)
def test_a_call_follows_what_was_thought(family: Family) -> None:
    assert family.reasoning is not None
    thought = f"{family.reasoning.open}I look.{family.reasoning.close}\n"
    call = family.write([("get_weather", {"city": "Paris"})])
    got = read(family.parser(TOOLS), family.tokens(thought + call))
    assert (got.reasoning, got.text) == ("I look.", "")
    assert got.calls == [("get_weather", '{"city": "Paris"}')]


@pytest.mark.parametrize("family", [COHERE, GRANITE], ids=lambda family: family.name)
def test_content_that_is_bound_may_stand_between_its_markers(
    family: Family, demo_folder: Path
) -> None:
    compiled = Compiled(family, demo_folder)
    structure = Structure("json", {"type": "object", "required": ["x"]}, "response_format")
    grammar = answer_grammar(
        compiled.format, AnswerConstraint(structure, [], False, False, opened=False, thinks=True)
    )
    assert family.reasoning is not None
    thought = f"{family.reasoning.open}Hm.{family.reasoning.close}"
    for begin, end in [*family.reasoning.content, ("", "")]:
        answer = f'{thought}{begin}{{"x": 1}}{end}'
        assert compiled.accepts(grammar, answer)
        assert not compiled.accepts(grammar, f"{thought}{begin}{{}}{end}")
        got = read(
            family.parser_with(compiled.control, []), compiled.text_of(compiled.encode(answer))
        )
        assert json.loads(got.text) == {"x": 1}
