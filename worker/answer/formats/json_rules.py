"""Grammars of calls that are JSON objects."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.answer.control import ControlTokens
from worker.answer.formats.base import Tool
from worker.grammar.lark import Rules, literal, token
from worker.grammar.schemas import moved, with_options

SPACE = r"/[ \n]{1,8}/?"
_NOTHING: Mapping[str, Any] = {}


def marker(control: ControlTokens, text: str) -> str:
    """A marker as a grammar has it: by id where it is a token."""
    return " ".join(
        token(part) if isinstance(part, int) else literal(part) for part in control.token_ids(text)
    )


def call_schema(
    tools: Sequence[Tool],
    arguments_key: str,
    *,
    name_key: str = "name",
    before: Mapping[str, Any] = _NOTHING,
) -> dict[str, Any]:
    """Of an object with a tool's name and its arguments; properties `before` them may be there."""
    places = {f"tool_{number}": tool for number, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                **before,
                name_key: {"const": tool.name},
                arguments_key: {"$ref": f"#/$defs/{place}"},
            },
            "required": [name_key, arguments_key],
            "additionalProperties": False,
        }
        for place, tool in places.items()
    ]
    schemas = {place: moved(tool.parameters, f"#/$defs/{place}") for place, tool in places.items()}
    return {"anyOf": calls, "$defs": schemas}


def call_list_schema(call: Mapping[str, Any], *, parallel: bool) -> dict[str, Any]:
    """Of a list of such calls: of one alone, unless `parallel`."""
    schema = {
        "type": "array",
        "items": {"anyOf": call["anyOf"]},
        "minItems": 1,
        "$defs": call["$defs"],
    }
    if not parallel:
        schema["maxItems"] = 1
    return schema


def add_json(rules: Rules, name: str, schema: dict[str, Any]) -> str:
    """A grammar for JSON; what of its schema cannot be enforced is known to be so."""
    return rules.refer(name, {"json_schema": with_options(schema, lenient=True)})
