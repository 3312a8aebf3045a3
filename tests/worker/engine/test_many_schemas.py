"""Rows with unlike schemas, all at once, of a model of random weights: what ends is valid."""

import json
from pathlib import Path
from typing import Any

from tests.models import make_tiny_model
from tests.worker.engine.running_engine import running_engine
from tests.worker.engine.samplings import sampling
from tests.worker.grammar.hostile import ENFORCED, MARKERS
from tests.worker.grammar.validity import invalidity
from worker.grammar.schemas import rebased
from worker.link.orders import ToolCallingOptions

_LONGEST = 500
"""Characters of a schema that the prompt has room for."""
_SHORT: list[Any] = [
    {"type": "integer", "minimum": -5, "maximum": 1200, "multipleOf": 5},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 9},
    {"type": ["null", "boolean"]},
    {"enum": MARKERS[:6]},
    {"const": {"a": [1, "\n", None], "": {}}},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]$"},
    {"type": "string", "maxLength": 5},
    {"type": "string", "format": "date"},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"enum": [1, 2.5, "x"]}}},
]


def tool_of(schema: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"value": {"$ref": "#/$defs/value"}},
        "required": ["value"],
        "$defs": {"value": rebased(schema, "#/$defs/value")},
    }
    return {"name": "tell", "parameters": parameters, "strict": True}


def test_all_calls_that_end_are_valid(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", context_tokens=4096)
    hostile = [each for each in ENFORCED.values() if len(json.dumps(each)) < _LONGEST]
    tools = [tool_of(each) for each in [*_SHORT, *hostile]]
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    closing = {str(vocabulary[character]): 8.0 for character in '"}]'}
    spaces = {str(vocabulary[character]): -20.0 for character in "ĠĊčĉ"}
    ended = 0
    with running_engine(model) as engine:
        sequences = [
            engine.submit(
                None,
                messages=[{"role": "user", "content": "Tell me."}],
                calling=ToolCallingOptions([tool], required=True, parallel=False),
                sampling=sampling(temperature=1.0, seed=seed, logit_bias={**closing, **spaces}),
                max_tokens=200,
            )
            for seed, tool in enumerate(tools)
        ]
        for sequence, tool in zip(sequences, tools, strict=True):
            answer = engine.answer(sequence)
            if answer.finish_reason == "tool_calls":
                ((_, arguments),) = answer.calls
                assert invalidity(arguments, tool["parameters"]) is None
                ended += 1
    assert ended >= len(_SHORT)
