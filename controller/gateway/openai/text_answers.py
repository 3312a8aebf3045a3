"""Answers to plain prompts in OpenAI's shape, whole and in chunks."""

import time
from collections.abc import Sequence
from typing import Any

from controller.gateway.openai.answers import DONE, event, finish_reason, usage_body
from controller.gateway.openai.errors import error_body
from shared.client import Completion
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage


class TextForm:
    """`text_completion`, whole and in chunks of the same shape."""

    def __init__(self, request_id: RequestId, model: str, *, include_usage: bool) -> None:
        self._id = f"cmpl-{request_id.removeprefix('req-')}"
        self._model = model
        self._created = int(time.time())
        self._include_usage = include_usage
        self._offsets: dict[int, int] = {}

    def whole(self, completion: Completion) -> dict[str, Any]:
        choices = [self._choice(output) for output in completion.choices]
        return self._body(choices) | {"usage": usage_body(completion.usage)}

    def opening(self, usage: Usage | None) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._events, outputs))

    def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return event(self._body([]) | {"usage": usage_body(usage)}) + DONE

    def _events(self, output: ChoiceOutput) -> bytes:
        if not (output.text or output.logprobs or output.finish_reason):
            return b""
        body = self._body([self._choice(output)])
        if self._include_usage:
            body["usage"] = None
        return event(body)

    def _choice(self, output: ChoiceOutput) -> dict[str, Any]:
        choice = {
            "text": output.text,
            "index": output.choice,
            "logprobs": self._logprobs(output),
            "finish_reason": finish_reason(output),
        }
        if output.error is not None:  # one prompt of several failed
            choice |= error_body(output.error.to_exception())
        return choice

    def _logprobs(self, output: ChoiceOutput) -> dict[str, Any] | None:
        if not output.logprobs:
            return None
        offsets = []
        offset = self._offsets.get(output.choice, 0)
        for entry in output.logprobs:
            offsets.append(offset)
            offset += len(entry["token"])
        self._offsets[output.choice] = offset
        return {
            "tokens": [entry["token"] for entry in output.logprobs],
            "token_logprobs": [entry["logprob"] for entry in output.logprobs],
            "top_logprobs": [
                {other["token"]: other["logprob"] for other in entry.get("top", [])}
                for entry in output.logprobs
            ],
            "text_offset": offsets,
        }

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
