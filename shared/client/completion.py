"""A whole answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from shared.client.typed import M, Schema, read_value
from shared.ids import RequestId, WorkerId
from shared.messages.stream import ChoiceOutput, Timings, Usage, plain_calls


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. The properties are those of the first choice. `route` says how the worker was
    selected, if the request has `debug`; `warnings` are sentences for people. In a list of prompts
    single choices may fail: their `finish_reason` is `error`, and their `error` says why."""

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
        """The reasoning before the answer."""
        return self.choices[0].reasoning or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Each {"id", "type", "function": {"name", "arguments"}}; `arguments` is JSON,
        complete unless the answer broke off."""
        return plain_calls(self.choices[0].tool_calls or ())

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, with reasoning and calls, for the next request: append it to
        `messages`, and after it a {"role": "tool", "tool_call_id", "content"} for each call."""
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
        """Return the value of an answer that was requested with this schema: an instance of the
        pydantic model, or the parsed JSON.

        Raises:
            InvalidAnswer: the answer does not match, for example because it broke off; has the
                text.
        """
        return read_value(schema, self.text, self.finish_reason, self.usage)
