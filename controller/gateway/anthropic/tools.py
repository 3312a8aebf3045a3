"""Tools as Anthropic's clients describe them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from shared.external_model import ExternalModel
from shared.messages.tools import MAX_TOOLS, ToolName

_CLIENTS, _SERVERS = "", "of Anthropic's own"


class ClientTool(ExternalModel):
    """One that the caller runs."""

    name: ToolName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None

    @property
    def tool(self) -> dict[str, Any]:
        """As the cluster has it."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ServerTool(ExternalModel):
    """One that Anthropic's service runs, or whose schema only its models know."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None


def _kind(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return _CLIENTS if kind in (None, "custom") else _SERVERS


Tool = Annotated[
    Annotated[ClientTool, Tag(_CLIENTS)] | Annotated[ServerTool, Tag(_SERVERS)],
    Discriminator(_kind),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ToolChoice(ExternalModel):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    def fields(self) -> dict[str, Any]:
        """As the cluster's request says it."""
        choice: Any = {"any": "required", "auto": "auto", "none": "none"}.get(self.type)
        if self.type == "tool":
            choice = {"type": "function", "function": {"name": self.name or ""}}
        fields: dict[str, Any] = {"tool_choice": choice}
        if self.disable_parallel_tool_use:
            fields["parallel_tool_calls"] = False
        return fields
