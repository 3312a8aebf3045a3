"""Tool definitions of the Responses API."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from controller.gateway.responses.items import PlainObject, UninterpretedObject
from controller.gateway.responses.tool_names import INPUT, DeclaredTool, flat_name
from shared.codec import StrictInput
from shared.messages.tools import MAX_TOOLS, ToolName

_Schema = dict[str, Any] | None
_SUPPORTED = ("function", "custom", "namespace")


class FunctionTool(StrictInput):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: _Schema = None
    strict: bool | None = None


class CustomTool(StrictInput):
    """A tool that takes free text. A grammar in `format` is not enforced."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: PlainObject | None = None


class NamespaceTool(StrictInput):
    """A group of tools with a common name."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[list["Tool"], Field(max_length=MAX_TOOLS, fail_fast=True)]


class OtherTool(UninterpretedObject):
    """A tool that OpenAI's service runs."""

    type: Annotated[
        str, Field(min_length=1, max_length=256, json_schema_extra={"not": {"enum": [*_SUPPORTED]}})
    ]


def _tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return kind if kind in _SUPPORTED else "other"


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[OtherTool, Tag("other")],
    Discriminator(_tag),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
NamespaceTool.model_rebuild()


def cluster_tools(
    tools: list[Any], namespace: str | None = None
) -> Iterator[tuple[DeclaredTool, dict[str, Any]]]:
    """Yield each tool that the model gets, as the caller defined it and in the cluster's format."""
    for tool in tools:
        match tool:
            case FunctionTool():
                function: dict[str, Any] = {"parameters": tool.parameters, "strict": tool.strict}
                yield _cluster_tool(tool, "function", namespace, function)
            case CustomTool():
                properties = {INPUT: {"type": "string"}}
                schema = {
                    "type": "object", "properties": properties, "required": [INPUT],
                    "additionalProperties": False,
                }  # fmt: skip
                yield _cluster_tool(tool, "custom", namespace, {"parameters": schema})
            case NamespaceTool():
                yield from cluster_tools(tool.tools, tool.name)


def echoed_tool(tool: StrictInput) -> dict[str, Any]:
    """Return a tool of the request as the response repeats it."""
    echoed = tool.model_dump(exclude_none=True)
    defaults = {"parameters": None, "strict": None}
    return {**defaults, **echoed} if echoed["type"] == "function" else echoed


def ignored_tools(tools: list[Any]) -> Iterator[str]:
    """Yield the types of tools that only OpenAI's service runs."""
    for tool in tools:
        match tool:
            case OtherTool():
                yield tool.type
            case NamespaceTool():
                yield from ignored_tools(tool.tools)


def _cluster_tool(
    tool: FunctionTool | CustomTool,
    kind: Literal["function", "custom"],
    namespace: str | None,
    function: dict[str, Any],
) -> tuple[DeclaredTool, dict[str, Any]]:
    caller_tool = DeclaredTool(kind, tool.name, namespace)
    described = {"name": flat_name(tool.name, namespace), "description": tool.description}
    defined = {name: value for name, value in (described | function).items() if value is not None}
    return caller_tool, {"type": "function", "function": defined}
