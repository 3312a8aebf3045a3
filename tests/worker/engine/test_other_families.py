"""Families of models that are tried once each, through the real engine, with their templates."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests.scripted.folders import make_scripted_model
from tests.scripted.other_families import OTHER_TEMPLATES
from tests.worker.answer import test_muse
from tests.worker.answer.families import FAMILIES, WeatherCall
from tests.worker.engine.running_engine import RunningEngine
from worker.link.facts import ModelLoaded
from worker.link.orders import ToolCallingOptions

_TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
_ARGUMENTS = {"city": 'Paris \u6771\u4eac "x" </function>', "days": 3}


@dataclass(frozen=True)
class Said:
    """What a model of a family writes around what it means."""

    write: Callable[[Sequence[WeatherCall]], str]
    thought: str = ""
    before: str = ""
    behind: str = ""


_WRITE = {family.name: family.write for family in FAMILIES}
_SAID = {
    "lfm2": Said(_WRITE["lfm2"], "<think>Hm, 2 < 3.</think>"),
    "granite": Said(_WRITE["granite"], "<think>Hm, 2 < 3.</think>\n", "<response>", "</response>"),
    "cohere": Said(
        _WRITE["cohere"],
        "<|START_THINKING|>Hm, 2 < 3.<|END_THINKING|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
    ),
    "minicpm5": Said(_WRITE["minicpm5"], "<think>\nHm, 2 < 3.\n</think>\n\n"),
    "muse": Said(test_muse.write, test_muse.THOUGHT, " to=user<|message|>"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    engine = RunningEngine(prefill_chunk_tokens=64)
    engine.start()
    yield engine
    engine.stop()


@pytest.mark.parametrize("name", OTHER_TEMPLATES)
def test_a_model_thinks_calls_and_answers_in_the_manner_of_its_family(
    engine: RunningEngine, demo_folder: Path, tmp_path: Path, name: str
) -> None:
    said = _SAID[name]
    scripts = {
        "two calls": said.thought + said.write([("get_weather", _ARGUMENTS), ("now", {})]),
        "4711": f"{said.thought}{said.before}It is warm.{said.behind}",
    }
    folder = make_scripted_model(tmp_path / name, demo_folder, OTHER_TEMPLATES[name], scripts)
    model = ModelId(name)
    loaded = engine.load(folder, model, trust_remote_code=True)
    assert isinstance(loaded, ModelLoaded), loaded
    asked: dict[str, Any] = {"role": "user", "content": "two calls, please"}
    fields: dict[str, Any] = {
        "model": model,
        "calling": ToolCallingOptions(_TOOLS),
        "max_tokens": 300,
    }
    for required in (False, True):
        fields["calling"] = ToolCallingOptions(_TOOLS, required=required)
        answer = engine.generate(None, messages=[asked], **fields)
        assert [called for called, _ in answer.calls] == ["get_weather", "now"]
        assert json.loads(answer.calls[0][1]) == _ARGUMENTS
        assert (answer.text, answer.reasoning) == ("", "Hm, 2 < 3.")
        assert answer.finish_reason == "tool_calls"
        assert answer.outputs[-1].warnings == []
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Paris"})},
    }
    fields["calling"] = ToolCallingOptions(_TOOLS)
    answer = engine.generate(
        None,
        messages=[
            asked,
            {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "Hm."},
            {"role": "tool", "content": "4711 degrees", "tool_call_id": "call_1"},
        ],
        **fields,
    )
    assert (answer.text, answer.reasoning) == ("It is warm.", "Hm, 2 < 3.")
    assert answer.finish_reason == "stop"
