"""Reasoning and tool calls through the real engine, of models that follow scripts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests import tiers
from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from tests.worker.answer.families import FAMILIES, Family
from tests.worker.engine.running_engine import Answer, RunningEngine
from worker.link.facts import ModelLoaded
from worker.link.orders import SentCharacters, ToolCallingOptions

_TOOLS = [
    {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
_ARGUMENTS = {"city": 'Paris 東京 👩‍👩‍👧 "x" </tool_call>', "days": 3}
_BY_NAME = {family.name: family for family in FAMILIES}
_THOUGHT = {
    "hermes": "<think>\nHm, 2 < 3.\n</think>\n\n",
    "hermes, markers spelled": "<think>\nHm, 2 < 3.\n</think>\n\n",
    "hermes, thinking opened": "Hm, 2 < 3.\n</think>\n\n",
    "qwen3_coder": "<think>\nHm, 2 < 3.\n</think>\n\n",
    "glm": "\n<think>Hm, 2 < 3.</think>\n",
    "gemma4": "<|channel>thought\nHm, 2 < 3.<channel|>",
    "harmony": "<|channel|>analysis<|message|>Hm, 2 < 3.<|end|><|start|>assistant",
}
_FINAL = {"harmony": "<|channel|>final<|message|>"}


def _scripts(name: str, family: Family) -> dict[str, str]:
    thought = _THOUGHT.get(name, "")
    one = family.write([("get_weather", _ARGUMENTS)])
    two = family.write([("get_weather", _ARGUMENTS), ("now", {})])
    return {
        "one call": thought + one,
        "two calls": thought + two,
        "an answer": f"{thought}{_FINAL.get(name, '')}It is nine.",
        "4711": f"{thought}{_FINAL.get(name, '')}It is warm.",
    }


@pytest.fixture(scope="module", params=list(TEMPLATES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(
    name: str, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    family = _BY_NAME[name.removesuffix(", thinking opened")]
    folder = make_scripted_model(
        tmp_path_factory.mktemp("scripted") / "model",
        demo_folder,
        TEMPLATES[name],
        _scripts(name, family),
    )
    engine = RunningEngine(prefill_chunk_tokens=64)
    engine.start()
    loaded = engine.load(folder, ModelId("scripted"), trust_remote_code=True)
    assert isinstance(loaded, ModelLoaded), loaded
    yield engine
    engine.stop()


def ask(engine: RunningEngine, *messages: dict[str, Any], tools: bool = True) -> Answer:
    return engine.generate(None, **_fields(*messages, tools=tools))


def _fields(*messages: dict[str, Any], tools: bool) -> dict[str, Any]:
    return {
        "model": ModelId("scripted"),
        "messages": list(messages),
        "calling": ToolCallingOptions(_TOOLS) if tools else None,
        "max_tokens": 400,
    }


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_call_is_told_as_a_call(engine: RunningEngine, name: str) -> None:
    answer = ask(engine, user("one call, please"))
    assert [called for called, _ in answer.calls] == ["get_weather"]
    assert json.loads(answer.calls[0][1]) == _ARGUMENTS
    assert answer.text == ""
    assert answer.reasoning == ("Hm, 2 < 3." if name in _THOUGHT else "")
    assert answer.finish_reason == "tool_calls"
    assert answer.outputs[-1].warnings == []


def test_several_calls_are_told_one_after_another(engine: RunningEngine, name: str) -> None:
    if name == "harmony":
        pytest.skip("a call ends the turn")
    answer = ask(engine, user("two calls, please"))
    assert [called for called, _ in answer.calls] == ["get_weather", "now"]


def test_reasoning_is_told_apart_and_counted(engine: RunningEngine, name: str) -> None:
    answer = ask(engine, user("an answer, please"), tools=False)
    assert answer.text == "It is nine."
    assert answer.finish_reason == "stop"
    counted = answer.outputs[-1].reasoning_tokens
    if name in _THOUGHT:
        assert answer.reasoning == "Hm, 2 < 3."
        assert 5 < counted < len(answer.token_ids) - 3
    else:
        assert (answer.reasoning, counted) == ("", 0)


def test_results_of_calls_reach_the_model(engine: RunningEngine) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Paris"})},
    }
    answer = ask(
        engine,
        user("one call, please"),
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "Hm."},
        {"role": "tool", "content": "4711 degrees", "tool_call_id": "call_1"},
    )
    assert answer.text == "It is warm."


@pytest.mark.parametrize("script", ["two calls", "an answer"])
def test_an_answer_goes_on_wherever_it_broke_off(
    engine: RunningEngine, name: str, script: str
) -> None:
    """As for a client that has what came until then, and as at another worker, which says all of it
    again."""
    tools = script == "two calls"
    whole = ask(engine, user(f"{script}, please"), tools=tools)
    ids = whole.token_ids
    submitted = []
    for cut in range(1, len(ids), tiers.examples(11, 1)):
        fields = _fields(user(f"{script}, please"), tools=tools)
        had = Answer(whole.outputs[:cut])
        sent = SentCharacters(
            len(had.text), len(had.reasoning), [len(arguments) for _, arguments in had.calls]
        )
        going_on = engine.submit(None, **fields, resumed_ids=ids[:cut], sent=sent)
        again = engine.submit(None, **fields, replayed_ids=ids[:cut])
        submitted.append((had, going_on, again))
    for had, going_on, again in submitted:
        rest = engine.answer(going_on)
        joined = Answer([*had.outputs, *rest.outputs])
        assert (joined.text, joined.reasoning) == (whole.text, whole.reasoning)
        assert joined.calls == whole.calls
        assert joined.token_ids == ids
        assert rest.finish_reason == whole.finish_reason
        assert _told(engine.answer(again)) == _told(whole)


def _told(answer: Answer) -> list[Any]:
    return [
        (output.token_ids, output.text, output.reasoning, output.calls, output.finish_reason)
        for output in answer.outputs
    ]
