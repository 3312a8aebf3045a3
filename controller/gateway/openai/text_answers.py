"""Answers of OpenAI's Completions, complete and in chunks."""

import codecs
import time
from collections.abc import Sequence
from typing import Any

from controller.gateway.openai.answers import (
    DONE,
    event,
    finish_reason,
    token_bytes,
    usage_body,
)
from controller.gateway.openai.errors import error_body
from shared.client import Completion
from shared.errors import ClusterError
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage


class _CharacterOffsets:
    """Counts the characters of an answer; a token may be part of a character."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: bytes) -> int:
        """Return the offset of the character that the next token begins with or continues."""
        offset = self._characters
        self._characters += len(self._decoder.decode(token))
        return offset


class TextCompletionSerializer:
    """Objects of the type `text_completion`, complete and in chunks."""

    def __init__(self, request_id: RequestId, model: str, *, include_usage: bool) -> None:
        self._id = f"cmpl-{request_id.removeprefix('req-')}"
        self._model = model
        self._created = int(time.time())
        self._include_usage = include_usage
        self._offsets: dict[int, _CharacterOffsets] = {}

    async def whole(self, completion: Completion) -> dict[str, Any]:
        choices = [self._choice(output) for output in completion.choices]
        return self._body(choices) | {"usage": usage_body(completion.usage)}

    def opening(self, usage: Usage | None) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._events, outputs))

    def keep_alive(self) -> bytes:
        return b""

    async def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return event(self._body([]) | {"usage": usage_body(usage)}) + DONE

    def failure(self, error: ClusterError) -> bytes:
        return event(error_body(error))

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
        counter = self._offsets.setdefault(output.choice, _CharacterOffsets())
        offsets = [counter.add(token_bytes(entry)) for entry in output.logprobs]
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
