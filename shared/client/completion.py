"""A whole answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from shared.client.typed import M, Schema, read_value
from shared.ids import RequestId, WorkerId
from shared.messages.stream import ChoiceOutput, Timings, Usage, plain_calls


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. What stands beside `choices` is of the first choice; `route` says how its
    worker was chosen, if that was asked with `debug`; `warnings` are sentences for people. Of a
    list of prompts some choices may have failed alone: their `finish_reason` is `error`, and their
    `error` says why."""

    request_id: RequestId
    worker: WorkerId | None
    choices: tuple[ChoiceOutput, ...]
    usage: Usage
    timings: Timings
    route: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        """What the model thought before."""
        return self.choices[0].reasoning or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Each {"id", "type", "function": {"name", "arguments"}}; `arguments` is JSON, whole
        unless the answer broke off."""
        return plain_calls(self.choices[0].tool_calls or ())

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, with reasoning and calls, to go on with: append it to
        `messages`, and behind it a {"role": "tool", "tool_call_id", "content"} for each call."""
        return self.choices[0].turn

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason

    @overload
    def value(self, schema: type[M]) -> M: ...
    @overload
    def value(self, schema: Mapping[str, Any]) -> Any: ...
    def value(self, schema: Schema) -> Any:
        """What an answer says that was asked for with this schema: an instance of the pydantic
        model, or the value of the JSON.

        Raises:
            InvalidAnswer: it is none, as when it broke off; it has the text.
        """
        return read_value(schema, self.text, self.finish_reason, self.usage)
