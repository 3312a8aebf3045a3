"""Answers bound to schemas, choices, expressions and tools, alone and among others."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from llguidance import LLParserLimits

from shared.ids import ModelId
from shared.messages.structured import Structure
from tests import tiers
from tests.worker.engine.running_engine import Answer, RunningEngine
from tests.worker.engine.samplings import GREEDY, sampling
from worker.grammar import compiler
from worker.link.orders import SubmitSequence, ToolCallingOptions

DEMO = ModelId("demo")
_CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "people", "capital"],
    "additionalProperties": False,
}
_TOOLS = [
    {"name": "get_weather", "parameters": _CITY},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]


@pytest.fixture(scope="module", params=[False, True], ids=["reads first", "evaluates ahead"])
def engine(demo_folder: Path, request: pytest.FixtureRequest) -> Iterator[RunningEngine]:
    engine = RunningEngine(prefill_chunk_tokens=128, evaluates_ahead=request.param)
    engine.start()
    engine.load(demo_folder, DEMO)
    yield engine
    engine.stop()


def order(engine: RunningEngine, question: str, **fields: Any) -> SubmitSequence:
    messages = [{"role": "user", "content": question}]
    return engine.order(None, model=DEMO, messages=messages, **{"max_tokens": 60, **fields})


def ask(engine: RunningEngine, question: str, **fields: Any) -> Answer:
    asked = order(engine, question, **fields)
    engine.give(asked)
    return engine.answer(asked.sequence)


def json_of(schema: Any) -> Structure:
    return Structure("json", schema, "response_format.json_schema.schema")


def test_an_answer_is_json_of_its_schema_and_ends_by_itself(engine: RunningEngine) -> None:
    answer = ask(engine, "Tell me about Paris.", structure=json_of(_CITY))
    validate(json.loads(answer.text), _CITY)
    assert answer.finish_reason == "stop"


def test_it_ends_where_nothing_may_follow_also_with_ignore_eos(engine: RunningEngine) -> None:
    answer = ask(engine, "Tell me about Paris.", structure=json_of(_CITY), ignore_eos=True)
    validate(json.loads(answer.text), _CITY)
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("kind", "value", "allowed"),
    [
        ("choice", ["yes", "no", "it depends"], {"yes", "no", "it depends"}),
        (
            "regex",
            r"(cat|dog) [0-9]{2}",
            {f"{a} {n:02}" for a in ("cat", "dog") for n in range(100)},
        ),
        ("grammar", 'start: "a" ("b" | "c")', {"ab", "ac"}),
    ],
)
def test_an_answer_is_one_of_what_is_allowed(
    engine: RunningEngine, kind: Any, value: Any, allowed: set[str]
) -> None:
    structure = Structure(kind, value, f"structured_outputs.{kind}")
    answer = ask(engine, "What is it?", structure=structure)
    assert answer.text in allowed
    assert answer.finish_reason == "stop"


def test_a_call_that_must_be_is_one_and_valid(engine: RunningEngine) -> None:
    answer = ask(
        engine,
        "What is the weather in Paris?",
        calling=ToolCallingOptions(_TOOLS, required=True, parallel=False),
    )
    ((name, arguments),) = answer.calls
    assert answer.text == ""
    if name == "get_weather":
        validate(json.loads(arguments), _CITY)
    assert answer.finish_reason == "tool_calls"


def test_the_tool_that_is_named_is_called(engine: RunningEngine) -> None:
    calling = ToolCallingOptions(_TOOLS, forced="now", required=True, parallel=False)
    answer = ask(engine, "What is the weather in Paris?", calling=calling)
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [("now", {})]


def test_log_probabilities_are_those_without_the_mask(engine: RunningEngine) -> None:
    structure = Structure("choice", ["zebra"], "structured_outputs.choice")
    answer = ask(engine, "Hello!", structure=structure, sampling=sampling(logprobs=2))
    entries = [entry for output in answer.outputs for entry in output.logprobs or []]
    assert answer.text == "zebra"
    assert all(-60 < entry["logprob"] < 0 for entry in entries)
    assert entries[0]["token_id"] != entries[0]["top"][0]["token_id"]


def _bound(number: int) -> dict[str, Any]:
    """What the answer of a row is bound to: of each row something else."""
    name = f"city_{number}"
    city = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2 + number}
    tools = [{"name": f"get_{number}", "parameters": city}, *_TOOLS]
    kinds: list[dict[str, Any]] = [
        {},
        {"structure": json_of(city)},
        {"structure": json_of(numbers)},
        {"structure": Structure("choice", ["yes", "no", name], "structured_outputs.choice")},
        {"calling": ToolCallingOptions(tools, required=True, parallel=False)},
        {"calling": ToolCallingOptions(tools)},
        {"calling": ToolCallingOptions(tools[number % 2 :], required=True)},
        {"structure": Structure("regex", f"[a-z ]{{5,{9 + number}}}", "structured_outputs.regex")},
    ]
    return kinds[number % len(kinds)]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
def test_who_is_served_beside_it_changes_no_answer(
    engine: RunningEngine, temperature: float
) -> None:
    def orders() -> list[SubmitSequence]:
        return [
            order(
                engine,
                f"Tell me about city number {number}.",
                max_tokens=14,
                sampling=sampling(temperature=temperature, seed=number) if temperature else GREEDY,
                **_bound(number),
            )
            for number in range(tiers.examples(8, 32))
        ]

    alone = []
    for each in orders():
        engine.give(each)
        alone.append(engine.answer(each.sequence))
    together = orders()
    for each in together:
        engine.give(each)
    answers = [engine.answer(each.sequence) for each in together]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]
    assert [answer.text for answer in answers] == [answer.text for answer in alone]
    assert [answer.calls for answer in answers] == [answer.calls for answer in alone]


def test_what_cannot_be_enforced_is_refused_with_its_place(engine: RunningEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    refused = engine.refusal(engine.submit(None, **_chat(structure=json_of(schema))))
    assert refused.code == "invalid_request"
    assert refused.param == "response_format.json_schema.schema.properties.a"
    strict = [{"name": "now", "parameters": schema, "strict": True}]
    refused = engine.refusal(engine.submit(None, **_chat(calling=ToolCallingOptions(strict))))
    assert refused.param == "tools.0.function.parameters.properties.a"


def test_of_other_tools_it_is_dropped_and_said(engine: RunningEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    calling = ToolCallingOptions([{"name": "now", "parameters": schema}])
    answer = ask(engine, "Hello!", calling=calling, max_tokens=2)
    warnings = [each for output in answer.outputs for each in output.warnings]
    assert [each.split(":")[0] for each in warnings] == ["tools.0.function.parameters"]


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": DEMO, "messages": [{"role": "user", "content": "Hello!"}], **fields}


def test_a_grammar_that_reaches_a_limit_ends_its_row_and_no_other(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ask(engine, "Tell me about Rome.", max_tokens=40)
    monkeypatch.setattr(compiler, "_LIMITS", LLParserLimits(max_lexer_states=60))
    client_messages = Structure("regex", "[a-z]{1000}", "structured_outputs.regex")
    beside = order(engine, "Tell me about Rome.", max_tokens=40)
    bound = order(engine, "Tell me about Paris.", max_tokens=400, structure=client_messages)
    engine.give(beside)
    engine.give(bound)
    refused = engine.refusal(bound.sequence)
    assert refused.code == "request_failed"
    assert refused.message.startswith("the grammar of the answer cannot go on")
    assert engine.answer(beside.sequence).token_ids == alone.token_ids
    monkeypatch.undo()
    again = ask(engine, "Tell me about Rome.", max_tokens=40, structure=client_messages)
    assert again.finish_reason == "length", "the limit was that of another one"
