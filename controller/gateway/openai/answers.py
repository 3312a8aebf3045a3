"""Parts of answers that Chat Completions and Completions share."""

from typing import Any

import orjson

from shared.messages.stream import ChoiceOutput, Usage

DONE = b"data: [DONE]\n\n"
_FINISH_REASONS = {"cancelled": "stop"}
"""Replacements for finish reasons that OpenAI's API does not have."""


def event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def finish_reason(output: ChoiceOutput) -> str | None:
    reason = output.finish_reason
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def token_entries(output: ChoiceOutput) -> list[dict[str, Any]]:
    """Return the log-probabilities of the content's tokens."""
    return [
        _token(entry) | {"top_logprobs": [_token(other) for other in entry.get("top", [])]}
        for entry in output.logprobs or ()
        if entry.get("channel", "content") == "content"
    ]


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    token = entry["token"]
    return {"token": token, "logprob": entry["logprob"], "bytes": list(token_bytes(entry))}


def token_bytes(entry: dict[str, Any]) -> bytes:
    """Return the UTF-8 bytes of an entry's token, which may be part of a character."""
    utf8: list[int] | None = entry.get("bytes")
    return bytes(utf8) if utf8 is not None else entry["token"].encode()
