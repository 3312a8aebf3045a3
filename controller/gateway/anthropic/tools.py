"""Tool definitions of Anthropic's Messages API."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from shared.codec import StrictInput
from shared.messages.tools import MAX_TOOLS, ToolName

_CLIENT_TAG, _SERVER_TAG = "", "of Anthropic's own"


class ClientTool(StrictInput):
    """A tool that the caller runs."""

    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def tool(self) -> dict[str, Any]:
        """The tool in the format of the cluster's request."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ServerTool(StrictInput):
    """A tool that Anthropic's service runs, or whose schema only its models know."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None


def _tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return _CLIENT_TAG if kind in (None, "custom") else _SERVER_TAG


Tool = Annotated[
    Annotated[ClientTool, Tag(_CLIENT_TAG)] | Annotated[ServerTool, Tag(_SERVER_TAG)],
    Discriminator(_tag),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ToolChoice(StrictInput):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the cluster's request."""
        choice: Any = {"any": "required", "auto": "auto", "none": "none"}.get(self.type)
        if self.type == "tool":
            choice = {"type": "function", "function": {"name": self.name or ""}}
        fields: dict[str, Any] = {"tool_choice": choice}
        if self.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
        return fields
