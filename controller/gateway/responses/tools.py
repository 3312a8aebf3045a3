"""Tools as the Responses API describes them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from controller.gateway.responses.foreign import PassthroughItem, PlainObject
from controller.gateway.responses.names import INPUT, KnownTool, flat_name
from shared.external_model import ExternalModel
from shared.messages.tools import MAX_TOOLS, ToolName

_Schema = dict[str, Any] | None
_SERVED = ("function", "custom", "namespace")


class FunctionTool(ExternalModel):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: _Schema = None
    strict: bool | None = None


class CustomTool(ExternalModel):
    """One that takes free text. A `format` that is a grammar is told the model in words alone."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: PlainObject | None = None


class NamespaceTool(ExternalModel):
    """Tools under one name."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[list["Tool"], Field(max_length=MAX_TOOLS, fail_fast=True)]


class OtherTool(PassthroughItem):
    """One that OpenAI's service runs."""

    type: Annotated[
        str, Field(min_length=1, max_length=256, json_schema_extra={"not": {"enum": [*_SERVED]}})
    ]


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in _SERVED else "other"


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_kind),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
NamespaceTool.model_rebuild()


def served(
    tools: list[Any], namespace: str | None = None
) -> Iterator[tuple[KnownTool, dict[str, Any]]]:
    """Each tool that the model is told of, as the caller knows it and as the cluster has it."""
    for tool in tools:
        match tool:
            case FunctionTool():
                function: dict[str, Any] = {"parameters": tool.parameters, "strict": tool.strict}
                yield _named(tool, "function", namespace, function)
            case CustomTool():
                properties = {INPUT: {"type": "string"}}
                schema = {
                    "type": "object", "properties": properties, "required": [INPUT],
                    "additionalProperties": False,
                }  # fmt: skip
                yield _named(tool, "custom", namespace, {"parameters": schema})
            case NamespaceTool():
                yield from served(tool.tools, tool.name)


def shown_tool(tool: ExternalModel) -> dict[str, Any]:
    """As it was asked for."""
    shown = tool.model_dump(exclude_none=True)
    return {"parameters": None, "strict": None, **shown} if shown["type"] == "function" else shown


def left_out(tools: list[Any]) -> Iterator[str]:
    """The types of tools that nobody here can run."""
    for tool in tools:
        match tool:
            case OtherTool():
                yield tool.type
            case NamespaceTool():
                yield from left_out(tool.tools)


def _named(
    tool: FunctionTool | CustomTool,
    kind: Literal["function", "custom"],
    namespace: str | None,
    function: dict[str, Any],
) -> tuple[KnownTool, dict[str, Any]]:
    known = KnownTool(kind, tool.name, namespace)
    described = {"name": flat_name(tool.name, namespace), "description": tool.description}
    whole = {name: value for name, value in (described | function).items() if value is not None}
    return known, {"type": "function", "function": whole}
