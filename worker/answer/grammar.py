"""Grammar of a whole answer: optional reasoning, then content or tool calls as constrained."""

from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import regex_to_lark

from shared.messages.structured import Structure
from worker.answer.formats.base import Tool
from worker.answer.formats.json_rules import marker
from worker.answer.messages import MessagesParser
from worker.answer.model_output_format import ModelOutputFormat
from worker.answer.reasoning import ReasoningFormat
from worker.grammar import outline, regex
from worker.grammar.lark import LarkGrammarBuilder, literal, one_of, pattern
from worker.grammar.schemas import cleaned, with_options

_LINES = r"/\n{1,2}/?"
"""Separates reasoning from what follows; part of neither."""


@dataclass(frozen=True, slots=True)
class AnswerConstraint:
    """What one answer must conform to.

    Attributes:
        structure: the required structure of the content.
        tools: the tools that the answer may call.
        must_call: the answer must be tool calls, at least one.
        parallel: the answer may have several calls.
        opened: the prompt has opened reasoning.
        thinks: the answer may open reasoning.
    """

    structure: Structure | None
    tools: Sequence[Tool]
    must_call: bool
    parallel: bool
    opened: bool
    thinks: bool


def answer_grammar(answers: ModelOutputFormat, bound: AnswerConstraint) -> str:
    """Return the grammar of a whole answer; `bound` must have a structure or tools.

    Raises:
        ValueError: the structure is not a valid grammar.
    """
    rules = LarkGrammarBuilder()
    content = ""
    if bound.structure is not None and not bound.must_call:
        content = _add_structure(rules, bound.structure)
    if answers.messages is not None:
        answers.messages.add_answer(
            rules, answers.control, content, bound.tools, parallel=bound.parallel
        )
        return rules.grammar
    alternatives = _framed(answers, content) if content else []
    if bound.tools:
        assert answers.tools is not None
        section = answers.tools.add_section(
            rules, answers.control, bound.tools, parallel=bound.parallel
        )
        more = rf"(/[ \n]{{1,8}}/? {section})*" if bound.parallel else ""
        alternatives.append(f"{_empty_frame(answers)} {section} {more}")
    body = one_of(alternatives)
    reasoning = answers.reasoning
    if reasoning is None or not (bound.opened or bound.thinks):
        rules.add("start", body)
        return rules.grammar
    rest = _add_reasoning(rules, answers, reasoning)
    if bound.opened:
        rules.add("start", f"{rest} {_LINES} {body}")
    else:
        opening = marker(answers.control, reasoning.open)
        rules.add("start", f"({opening} {rest} {_LINES})? {body}")
    return rules.grammar


def section_grammars(
    answers: ModelOutputFormat, tools: Sequence[Tool], *, parallel: bool
) -> dict[str, str]:
    """Return the grammars that apply once a tool call has begun.

    By tool name, the grammar of a call, if the format writes the name in a header before the call;
    else, under the empty name, the grammar of a section from its opening to its end."""
    if answers.messages is not None:
        return {tool.name: _call_grammar(answers.messages, answers, tool) for tool in tools}
    rules = LarkGrammarBuilder()
    assert answers.tools is not None
    section = answers.tools.add_section(rules, answers.control, tools, parallel=parallel)
    rules.add("start", section)
    return {"": rules.grammar}


def _call_grammar(messages: type[MessagesParser], answers: ModelOutputFormat, tool: Tool) -> str:
    rules = LarkGrammarBuilder()
    messages.add_call(rules, answers.control, tool)
    return rules.grammar


def _add_reasoning(
    rules: LarkGrammarBuilder, answers: ModelOutputFormat, reasoning: ReasoningFormat
) -> str:
    """Add reasoning and the marker that ends it; returns the rule body."""
    parts = answers.control.token_ids(reasoning.close)
    if isinstance(parts[0], int):
        rules.add("THOUGHT", "/(?s:.*)/")
        return f"THOUGHT {marker(answers.control, reasoning.close)}"
    rules.add("thought[lazy]", f"/(?s:.*){pattern(reasoning.close)}/")
    return "thought"


def _framed(answers: ModelOutputFormat, content: str) -> list[str]:
    """Return the alternatives of content: unmarked, and within each pair of content markers."""
    pairs = answers.reasoning.content if answers.reasoning is not None else ()
    return [content] + [
        f"{marker(answers.control, begin)} {content} {marker(answers.control, end)}"
        for begin, end in pairs
    ]


def _empty_frame(answers: ModelOutputFormat) -> str:
    """Return what may precede calls: a pair of content markers with nothing between them."""
    pairs = answers.reasoning.content if answers.reasoning is not None else ()
    frames = [marker(answers.control, f"{begin}{end}") for begin, end in pairs]
    return f"{one_of(frames)}?" if frames else ""


def _add_structure(rules: LarkGrammarBuilder, structure: Structure) -> str:
    match structure.kind:
        case "json":
            return rules.add_grammar(
                "answer", {"json_schema": with_options(cleaned(structure.value))}
            )
        case "choice":
            return rules.add("answer", one_of([literal(each) for each in structure.value]))
        case "regex":
            _refuse(regex.find_problem(structure.value))
            return rules.add("answer", f"/{regex_to_lark(structure.value)}/")
        case "grammar":
            _refuse(outline.find_problem(structure.value))
            return rules.add_grammar("answer", {"lark_grammar": structure.value})


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)
