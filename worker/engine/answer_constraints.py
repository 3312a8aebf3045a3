"""What an answer is bound to, from what a request asks and the model can write."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.errors import InvalidRequest, RequestError
from worker.answer.constraint import Constraint, token_ids_of
from worker.answer.format import PLAIN_FORMAT, AnswerFormat
from worker.answer.formats.base import Tool
from worker.answer.grammar import AnswerConstraint, answer_grammar, section_grammars
from worker.engine.model import LoadedModel
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.schemas import arguments_schema
from worker.link.orders import Calling, Submit

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def tools_of(calling: Calling | None) -> list[Tool]:
    """The tools of a request as they were described."""
    return [_tool(each) for each in calling.tools] if calling is not None else []


def bind_answer(
    order: Submit, model: LoadedModel, *, opened: bool, thinks: bool, max_tokens: int
) -> tuple[Constraint | None, list[str]]:
    """The constraint of an answer, if it needs one, and sentences about what is not enforced.

    Args:
        opened: the prompt has opened reasoning.
        thinks: the model may open it itself.

    Raises:
        RequestError: what it is to be bound to cannot be enforced; `param` names the place.
    """
    answers = model.format if order.messages is not None else PLAIN_FORMAT
    calling, structured = order.calling, order.structure
    budget = order.thinking_budget if answers.can_reason else None
    if calling is None and structured is None and budget is None:
        return None, []
    if model.grammars is None:
        raise RequestError(
            "the tokenizer of this model allows no grammars: no tools, schemas or budgets: "
            f"{model.no_grammars}",
            code="not_supported",
            param="tools" if calling is not None else structured.param if structured else None,
        )
    tools, warnings = _enforced(calling, model.grammars)
    whole = sections = None
    if structured is not None or (calling is not None and calling.required):
        if structured is not None and structured.kind == "json":
            model.grammars.check_schema(structured.value, structured.param)
        must_call = calling is not None and calling.required
        parallel = calling is not None and calling.parallel
        bound = AnswerConstraint(
            structured, tools, must_call, parallel, opened=opened, thinks=thinks
        )
        whole = _whole(answers, bound, model.grammars)
        if budget is None and answers.can_reason:
            budget = max(1, max_tokens // 2)
    elif calling is not None:
        sections = _sections(answers, tools, calling, model.grammars)
    constraint = Constraint(
        model.grammars.tokenizer,
        answers.control,
        whole=whole,
        sections=sections,
        parallel=calling is None or calling.parallel,
        closing_ids=_closing_ids(answers, model.grammars, free=whole is None),
        budget_tokens=budget,
    )
    return constraint, warnings


def _tool(described: Mapping[str, Any]) -> Tool:
    return Tool(
        described["name"],
        described.get("description") or "",
        described.get("parameters") or {},
        described.get("strict") is True,
    )


def _enforced(calling: Calling | None, grammars: GrammarCompiler) -> tuple[list[Tool], list[str]]:
    """The tools that may be called, with what is enforced of their schemas. Of a strict one that
    must be all of it; one unusual tool among others must not be in an agent's way."""
    tools, warnings = [], []
    for number, tool in enumerate(tools_of(calling)):
        if calling is not None and calling.forced not in (None, tool.name):
            continue
        param = f"tools.{number}.function.parameters"
        schema = arguments_schema(tool.parameters)
        if tool.strict:
            grammars.check_schema(schema, param)
        elif (problem := grammars.problem(schema)) is not None:
            warnings.append(f"{param}: not enforced in full: {problem}")
            if grammars.problem(schema, lenient=True) is not None:
                schema = _ANY_OBJECT
        tools.append(replace(tool, parameters=schema))
    return tools, warnings


def _whole(answers: AnswerFormat, bound: AnswerConstraint, grammars: GrammarCompiler) -> Any:
    param = bound.structure.param if bound.structure is not None else "tools"
    try:
        return grammars.matcher(answer_grammar(answers, bound))
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _sections(
    answers: AnswerFormat, tools: Sequence[Tool], calling: Calling, grammars: GrammarCompiler
) -> dict[str, Any]:
    try:
        return {
            name: grammars.matcher(grammar)
            for name, grammar in section_grammars(answers, tools, parallel=calling.parallel).items()
        }
    except ValueError as error:
        raise InvalidRequest(f"tools: {error}", param="tools") from None


def _closing_ids(answers: AnswerFormat, grammars: GrammarCompiler, *, free: bool) -> list[int]:
    """The tokens that end reasoning; where the answer is `free` they begin the content, too."""
    if answers.messages is not None:
        closing = answers.messages.closing_of_reasoning(into_content=free)
    elif answers.reasoning is not None:
        closing = answers.reasoning.close
    else:
        return []
    return token_ids_of(answers.control.token_ids(closing), grammars.tokenizer)
