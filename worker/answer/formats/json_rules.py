"""Grammars of tool calls that are JSON objects."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.answer.control import ControlTokenCodec
from worker.answer.formats.base import Tool
from worker.grammar.lark import LarkGrammarBuilder, literal, token
from worker.grammar.schemas import rebased, with_options

SPACE = r"/[ \n]{1,8}/?"
_NO_PROPERTIES: Mapping[str, Any] = {}


def marker(control: ControlTokenCodec, text: str) -> str:
    """Return a rule body for a marker, in which control tokens are token ids."""
    return " ".join(
        token(part) if isinstance(part, int) else literal(part) for part in control.token_ids(text)
    )


def call_schema(
    tools: Sequence[Tool],
    arguments_key: str,
    *,
    name_key: str = "name",
    before: Mapping[str, Any] = _NO_PROPERTIES,
) -> dict[str, Any]:
    """Return the schema of an object with a tool's name and arguments; the properties `before`
    them are optional."""
    tools_by_key = {f"tool_{number}": tool for number, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                **before,
                name_key: {"const": tool.name},
                arguments_key: {"$ref": f"#/$defs/{key}"},
            },
            "required": [name_key, arguments_key],
            "additionalProperties": False,
        }
        for key, tool in tools_by_key.items()
    ]
    schemas = {
        key: rebased(tool.parameters, f"#/$defs/{key}") for key, tool in tools_by_key.items()
    }
    return {"anyOf": calls, "$defs": schemas}


def call_list_schema(call: Mapping[str, Any], *, parallel: bool) -> dict[str, Any]:
    """Return the schema of a list of such calls: of exactly one call, unless `parallel`."""
    schema = {
        "type": "array",
        "items": {"anyOf": call["anyOf"]},
        "minItems": 1,
        "$defs": call["$defs"],
    }
    if not parallel:
        schema["maxItems"] = 1
    return schema


def add_json(rules: LarkGrammarBuilder, name: str, schema: dict[str, Any]) -> str:
    """Add a grammar for JSON of a schema, and return its reference. Keywords that cannot be
    enforced are ignored: the caller has checked the schema."""
    return rules.add_grammar(name, {"json_schema": with_options(schema, lenient=True)})
