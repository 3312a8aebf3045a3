"""The answers to a list of prompts, as those of one request.

Plain state: no I/O.
"""

from dataclasses import replace
from typing import Any

from controller.owned_request import OwnedRequest
from controller.prompt_list import of_prompt
from shared.ids import RequestId
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    FinishReason,
    StreamError,
    Timings,
    Usage,
)
from shared.stream_log import MAX_BYTES, StreamLog


class MergedAnswer:
    """What the client of a list was told, and is told at the end.

    Choice j of prompt k is number k * n + j. Messages carry the list's own attempt, which does not
    change, and no worker. Methods return the messages to send; they send nothing.
    """

    def __init__(self, request: OwnedRequest) -> None:
        self._request = request
        self._n = request.request.n
        choices, streams = request.request.choices, request.request.stream
        self._log = StreamLog(choices, max_bytes=MAX_BYTES if streams else None)
        self._next_index = [0] * choices
        self._unfinished = set(range(choices))
        self._unanswered = set(range(len(request.request.prompts)))
        self._errors: dict[int, StreamError] = {}
        self._usages: dict[int, Usage] = {}
        self._usage_told = False
        self._timings: list[Timings] = []
        self._routes: dict[int, dict[str, Any]] = {}

    @property
    def over(self) -> bool:
        """Whether each prompt has its answers, or failed."""
        return not self._unanswered

    @property
    def tokens(self) -> int:
        return sum(self._next_index)

    def has_begun(self, prompt: int) -> bool:
        """Whether there are tokens of a prompt's answers."""
        return any(self._next_index[number] for number in self._numbers(prompt))

    def advance(self, prompt: int, output: ChoiceOutput, usage: Usage | None = None) -> Chunk:
        """What is new in one choice of a prompt; `usage` of that prompt, as far as it is known."""
        told, self._usage_told = self._usage_told, True
        if usage is not None and prompt not in self._usages:
            self._usages[prompt] = replace(usage, completion_tokens=0)
        numbered = replace(output, choice=prompt * self._n + output.choice)
        return self._said(numbered, None if told else self._usages.get(prompt))

    def done(
        self, prompt: int, usage: Usage, timings: Timings, route: dict[str, Any] | None = None
    ) -> None:
        """All of a prompt's answers are there."""
        self._unanswered.discard(prompt)
        self._usages[prompt] = usage
        self._timings.append(timings)
        self._keep_route(prompt, route)

    def fail(
        self, prompt: int, error: StreamError, route: dict[str, Any] | None = None
    ) -> list[Chunk]:
        """The last chunks of a prompt's choices that have not ended."""
        self._errors[prompt] = of_prompt(error, prompt)
        self._keep_route(prompt, route)
        return self._finish(prompt, "error", self._errors[prompt])

    def cancel(self, prompt: int) -> list[Chunk]:
        """Likewise, of a prompt that never went."""
        return self._finish(prompt, "cancelled")

    def replay(self) -> list[Chunk]:
        """The chunks that were sent, for who comes late."""
        if not self._request.request.stream:
            return []
        return [self._chunk(output) for output in self._log.since(None, 0)]

    def end(self) -> Done | Failed:
        """The terminal message: a bad one only where every prompt failed."""
        if len(self._errors) == len(self._request.request.prompts):
            return self.failed(self._errors[0])
        usages = self._usages.values()
        usage = Usage(
            sum(each.prompt_tokens for each in usages),
            sum(each.cached_tokens for each in usages),
            self.tokens,
        )
        outputs = () if self._request.request.stream else self._log.joined()
        return Done(*self._origin, usage, self._merged_timings(), outputs, self._route)

    def failed(self, error: StreamError) -> Failed:
        """The terminal message of a list that fails as a whole."""
        return Failed(*self._origin, error, self._route)

    def _numbers(self, prompt: int) -> range:
        return range(prompt * self._n, (prompt + 1) * self._n)

    @property
    def _origin(self) -> tuple[RequestId, int, None]:
        return self._request.request_id, max(0, self._request.attempt), None

    @property
    def _route(self) -> dict[str, Any] | None:
        """Of the first prompt that has one."""
        return self._routes[min(self._routes)] if self._routes else None

    def _keep_route(self, prompt: int, route: dict[str, Any] | None) -> None:
        if route is not None:
            self._routes[prompt] = route

    def _finish(
        self, prompt: int, reason: FinishReason, error: StreamError | None = None
    ) -> list[Chunk]:
        self._unanswered.discard(prompt)
        return [
            self._said(
                ChoiceOutput(
                    number, self._next_index[number], [], "", finish_reason=reason, error=error
                )
            )
            for number in self._numbers(prompt)
            if number in self._unfinished
        ]

    def _said(self, output: ChoiceOutput, usage: Usage | None = None) -> Chunk:
        self._log.append(output)
        self._next_index[output.choice] = output.index + len(output.token_ids)
        if output.finish_reason is not None:
            self._unfinished.discard(output.choice)
        return self._chunk(output, usage)

    def _chunk(self, output: ChoiceOutput, usage: Usage | None = None) -> Chunk:
        return Chunk(*self._origin, output, usage)

    def _merged_timings(self) -> Timings:
        """Those of the prompt whose first token came first, and the time from there to the end."""
        elapsed_ms = round(self._request.elapsed_ms, 2)
        never = Timings(elapsed_ms, 0.0, elapsed_ms, 0.0)
        first = min(self._timings, key=lambda timings: timings.ttft_ms, default=never)
        return replace(first, decode_ms=round(max(0.0, elapsed_ms - first.ttft_ms), 2))
