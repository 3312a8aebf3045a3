"""Functions that a model may call, and its tool calls, with OpenAI's names."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shared.codec import StrictInput
from shared.messages.schemas import check_schema

TOOL_NAME_PATTERN = r"^[A-Za-z0-9_.:-]{1,128}$"
MAX_TOOLS = 1024

ToolName = Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]


class Function(StrictInput):
    """A function; `parameters` is the JSON schema of its arguments, an object."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _bounded(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            check_schema(schema)
        return schema


class Tool(StrictInput):
    type: Literal["function"]
    function: Function


class CalledFunction(StrictInput):
    """`arguments` is JSON as a string, as the model wrote it."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str = ""


class ToolCall(StrictInput):
    """A tool call of an assistant."""

    id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def call(self) -> dict[str, Any]:
        """The call in the form that a chat template reads."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        call = {"type": self.type, "function": function}
        return call if self.id is None else {"id": self.id, **call}


class NamedFunction(StrictInput):
    name: ToolName


class NamedTool(StrictInput):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Tools(StrictInput):
    """The fields of a request about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = Field(
        None,
        description="`none`, `auto` (the default if there are tools), `required`, or a function",
    )
    parallel_tool_calls: bool = Field(True, description="whether an answer may have several calls")

    @model_validator(mode="after")
    def _choice_exists(self) -> Self:
        names = [tool.function.name for tool in self.tools or []]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"tools: {twice} is defined twice")
        if isinstance(self.tool_choice, NamedTool) and self.forced_tool not in names:
            raise ValueError(f"tool_choice: there is no tool {self.forced_tool}")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice: `required` needs tools")
        return self

    @property
    def forced_tool(self) -> str | None:
        """The name of the tool that must be called."""
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else None

    @property
    def usable_tools(self) -> list[Function]:
        """The functions in the prompt."""
        return [] if self.tool_choice == "none" else [tool.function for tool in self.tools or []]

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or self.forced_tool is not None
