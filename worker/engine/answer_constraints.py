"""Compiles the constraint of an answer from the request and the model's answer format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.errors import InvalidRequest, RequestError
from worker.answer.constraint import AnswerMatcher, token_ids_of
from worker.answer.formats.base import Tool
from worker.answer.grammar import AnswerConstraint, answer_grammar, section_grammars
from worker.answer.model_output_format import PLAIN_FORMAT, ModelOutputFormat
from worker.engine.model import LoadedModel
from worker.grammar.compiler import GrammarCompiler
from worker.grammar.schemas import arguments_schema
from worker.link.orders import SubmitSequence, ToolCallingOptions

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def tools_of(calling: ToolCallingOptions | None) -> list[Tool]:
    """Return the tools of a request, with the schemas that the client sent."""
    return [_tool(each) for each in calling.tools] if calling is not None else []


def compile_constraint(
    order: SubmitSequence,
    model: LoadedModel,
    *,
    opened: bool,
    thinks: bool,
    max_tokens: int,
    pause: Callable[[], None] = lambda: None,
) -> tuple[AnswerMatcher | None, list[str]]:
    """Return the constraint of an answer, or None, and warnings about what is not enforced.

    Args:
        opened: the prompt has opened reasoning.
        thinks: the model may open reasoning itself.
        pause: called between the grammars of many tools, and while a problem is located.

    Raises:
        RequestError: a requested constraint cannot be enforced; `param` names the field.
    """
    answers = model.format if order.messages is not None else PLAIN_FORMAT
    calling, structured = order.calling, order.structure
    budget = order.thinking_budget if answers.can_reason else None
    if calling is None and structured is None and budget is None:
        return None, []
    if model.grammars is None:
        raise RequestError(
            "the tokenizer of this model supports no grammars, so tools, schemas and thinking "
            f"budgets are not available: {model.no_grammars}",
            code="not_supported",
            param="tools" if calling is not None else structured.param if structured else None,
        )
    tools, warnings = _enforceable_tools(calling, model.grammars, pause)
    whole = sections = None
    if structured is not None or (calling is not None and calling.required):
        if structured is not None and structured.kind == "json":
            model.grammars.check_schema(structured.value, structured.param, pause)
        must_call = calling is not None and calling.required
        parallel = calling is not None and calling.parallel
        bound = AnswerConstraint(
            structured, tools, must_call, parallel, opened=opened, thinks=thinks
        )
        whole = _answer_matcher(answers, bound, model.grammars)
        if budget is None and answers.can_reason:
            budget = max(1, max_tokens // 2)
    elif calling is not None:
        sections = _section_matchers(answers, tools, calling, model.grammars, pause)
    constraint = AnswerMatcher(
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


def _enforceable_tools(
    calling: ToolCallingOptions | None, grammars: GrammarCompiler, pause: Callable[[], None]
) -> tuple[list[Tool], list[str]]:
    """Return the tools that may be called, with the enforceable part of their schemas, and
    warnings. The schema of a strict tool must be enforceable in full. Of other tools a part is
    enough: one unusual tool among others must not make an agent's request fail."""
    tools, warnings = [], []
    for number, tool in enumerate(tools_of(calling)):
        if calling is not None and calling.forced not in (None, tool.name):
            continue
        pause()
        param = f"tools.{number}.function.parameters"
        schema = arguments_schema(tool.parameters)
        if tool.strict:
            grammars.check_schema(schema, param, pause)
        elif (problem := grammars.problem(schema)) is not None:
            warnings.append(f"{param}: the schema is not enforced in full: {problem}")
            if grammars.problem(schema, lenient=True) is not None:
                schema = _ANY_OBJECT
        tools.append(replace(tool, parameters=schema))
    return tools, warnings


def _answer_matcher(
    answers: ModelOutputFormat, bound: AnswerConstraint, grammars: GrammarCompiler
) -> Any:
    param = bound.structure.param if bound.structure is not None else "tools"
    try:
        return grammars.matcher(answer_grammar(answers, bound))
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _section_matchers(
    answers: ModelOutputFormat,
    tools: Sequence[Tool],
    calling: ToolCallingOptions,
    grammars: GrammarCompiler,
    pause: Callable[[], None],
) -> dict[str, Any]:
    matchers = {}
    try:
        for name, grammar in section_grammars(answers, tools, parallel=calling.parallel).items():
            pause()
            matchers[name] = grammars.matcher(grammar)
        return matchers
    except ValueError as error:
        raise InvalidRequest(f"tools: {error}", param="tools") from None


def _closing_ids(answers: ModelOutputFormat, grammars: GrammarCompiler, *, free: bool) -> list[int]:
    """Return the tokens that end reasoning; of a `free` (unconstrained) answer they also begin the
    content."""
    if answers.messages is not None:
        closing = answers.messages.closing_of_reasoning(into_content=free)
    elif answers.reasoning is not None:
        closing = answers.reasoning.close
    else:
        return []
    return token_ids_of(answers.control.token_ids(closing), grammars.tokenizer)
