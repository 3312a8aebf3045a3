"""The messages of a stream: statuses, chunks of tokens, and exactly one terminal message.

Plain slotted dataclasses: a worker creates one for each token of each stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import orjson

from shared.codec import decode_object
from shared.errors import ClusterError, DecodeError, StreamFailed, is_retryable
from shared.ids import RequestId, WorkerId
from shared.messages import vectors

StatusName = Literal[
    "accepted", "queued", "loading", "prefill", "preempted", "migrating", "running"
]
KEEP_ALIVE_S = 1.5
"""After this time without a message the process that holds a request sends a status, so that a
client receives a message at least every 2 s."""

QUEUED_REASONS = ("dispatching", "earlier_turn", "history", "leader_change", "retry")
"""Why no worker has a request yet: it is being dispatched; an earlier turn of its session has not
ended; the history of the session is being requested; a new leader queries the workers; the next
attempt is delayed."""

FinishReason = Literal["stop", "length", "cancelled", "tool_calls", "error"]

_OPTIONAL_FIELDS = ("logprobs", "finish_reason", "reasoning", "tool_calls", "stop_sequence")
_STATUSES = frozenset(get_args(StatusName))


@dataclass(frozen=True, slots=True)
class Usage:
    """`reasoning_tokens` are part of `completion_tokens`."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds: in the queue; from admission to the first token; from acceptance to the first
    token; from the first token to the end."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float


@dataclass(frozen=True, slots=True)
class ErrorDetails:
    """Why a request ended without an answer; `code` is a key of `errors.ERROR_CODES`."""

    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None

    @classmethod
    def of(
        cls, code: str, message: str, param: str | None = None, *, retry_after_ms: int | None = None
    ) -> "ErrorDetails":
        """Return an error whose `retryable` is that of its code."""
        return cls(code, message, param, is_retryable(code), retry_after_ms)

    @classmethod
    def from_exception(cls, error: ClusterError) -> "ErrorDetails":
        wait_ms = error.retry_after_ms
        return cls(error.code, error.message, error.param, error.retryable, wait_ms)

    def counted_from(self, first: int, *, alone: bool = False) -> "ErrorDetails":
        """Return an error about one text to embed, `input.<number>`, with its number in a longer
        list, of which the text counted as 0 is number `first`; `alone` if there was no other one,
        whose errors have no number. Other errors stay the same."""
        name, _, number = (self.param or "").partition(".")
        if name != "input" or not (number.isdecimal() or (alone and not number)):
            return self
        param = f"input.{first + int(number or 0)}"
        message = self.message.replace(self.param or "", param, 1)
        return replace(self, param=param, message=message)

    def to_exception(self) -> StreamFailed:
        error = StreamFailed(self.message, param=self.param, retry_after_ms=self.retry_after_ms)
        error.code, error.retryable = self.code, self.retryable
        return error


@dataclass(frozen=True, slots=True)
class ChoiceOutput:
    """New tokens of one choice, from `index` (counted from 0) on.

    `text` is the certain part: it may lag behind the tokens while a character or a stop string is
    incomplete. The last output of the choice has the `finish_reason`, and as `stop_sequence` the
    stop string that ended it, if any; `error` says why a choice of a list of prompts ended with the
    reason `error`, while others continue.
    `logprobs` has one entry per token: {"token_id", "token", "logprob", "top": [the same],
    "channel": `reasoning`, `content` or `tool_calls`}.
    `text` is the content without `reasoning`. `tool_calls` has pieces of the calls, as OpenAI's
    deltas: {"index", "id", "type", "function": {"name", "arguments"}}, with `id`, `type` and `name`
    in the first piece of each call. Within one output reasoning comes first, calls last.
    `embedding` is the vector of one text of `input`, as `vectors` packs it (in JSON a list of
    numbers), `score` its relevance for the query; such a choice has no tokens.
    """

    choice: int
    index: int
    token_ids: list[int]
    text: str
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: FinishReason | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    stop_sequence: str | None = None
    error: ErrorDetails | None = None
    embedding: str | None = None
    score: float | None = None

    @property
    def turn(self) -> dict[str, Any]:
        """A whole answer as a message for the next request of the conversation."""
        return assistant_turn(self.text, self.reasoning, plain_calls(self.tool_calls or ()))

    @staticmethod
    def joined(outputs: Sequence["ChoiceOutput"]) -> "ChoiceOutput":
        """Return the outputs of one choice, at least one and in order, as one output."""
        logprobs = [entry for output in outputs for entry in output.logprobs or []]
        return replace(
            outputs[-1],
            index=outputs[0].index,
            token_ids=[token for output in outputs for token in output.token_ids],
            text="".join(output.text for output in outputs),
            logprobs=logprobs or None,
            reasoning="".join(output.reasoning or "" for output in outputs) or None,
            tool_calls=_joined_calls(outputs),
        )


def assistant_turn(
    text: str, reasoning: str | None, tool_calls: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return an answer as a message for the next request of the conversation."""
    turn: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        turn["reasoning"] = reasoning
    if tool_calls:
        turn["tool_calls"] = tool_calls
    return turn


def plain_calls(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return whole calls in the form of a message: without the `index` of their pieces."""
    return [{key: value for key, value in call.items() if key != "index"} for call in calls]


def _joined_calls(outputs: Sequence[ChoiceOutput]) -> list[dict[str, Any]] | None:
    """Return the complete calls."""
    calls: dict[int, dict[str, Any]] = {}
    for output in outputs:
        for piece in output.tool_calls or ():
            index = piece["index"]
            if index not in calls:
                calls[index] = {**piece, "function": dict(piece["function"])}
            else:
                calls[index]["function"]["arguments"] += piece["function"]["arguments"]
    return [calls[index] for index in sorted(calls)] or None


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """The state of a request; `seed` is set with `accepted`, `progress` (0 to 1) if it is known.
    `reason` says why no worker has a `queued` request: the code of an error, or one of
    `QUEUED_REASONS`."""

    request_id: RequestId
    attempt: int
    worker: WorkerId | None
    status: StatusName
    progress: float | None = None
    seed: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """New tokens. The first chunk has the `usage` of the prompt."""

    request_id: RequestId
    attempt: int
    worker: WorkerId | None
    output: ChoiceOutput
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class DoneMessage:
    """The terminal message of a completed request. `outputs` are the last new tokens, or, for a
    request with `stream: false`, the whole choices; `route` is for requests with `debug`.
    `warnings` are sentences for people: parts of the request that could not be done, an invalid
    tool call."""

    request_id: RequestId
    attempt: int
    worker: WorkerId | None
    usage: Usage
    timings: Timings
    outputs: tuple[ChoiceOutput, ...] = ()
    route: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """The terminal message of a failed request. `request_id` is None only if it could not be
    read."""

    request_id: RequestId | None
    attempt: int
    worker: WorkerId | None
    error: ErrorDetails
    route: dict[str, Any] | None = None


StreamMessage = StatusMessage | ChunkMessage | DoneMessage | FailedMessage


def to_dict(message: StreamMessage) -> dict[str, Any]:
    """Return the message in its wire format, without fields that are None, except `worker`."""
    body: dict[str, Any] = {
        "request_id": message.request_id,
        "attempt": message.attempt,
        "worker": message.worker,
    }
    match message:
        case StatusMessage():
            body["status"] = message.status
            if message.progress is not None:
                body["progress"] = message.progress
            if message.seed is not None:
                body["seed"] = message.seed
            if message.reason is not None:
                body["reason"] = message.reason
        case ChunkMessage():
            _put_output(body, message.output)
            if message.usage is not None:
                body["usage"] = asdict(message.usage)
        case DoneMessage():
            if len(message.outputs) == 1 and message.outputs[0].error is None:
                _put_output(body, message.outputs[0])
            elif message.outputs:
                body["choices"] = [_put_output({}, output) for output in message.outputs]
            body["done"] = True
            body["usage"] = asdict(message.usage)
            body["timings"] = asdict(message.timings)
            if message.warnings:
                body["warnings"] = list(message.warnings)
        case FailedMessage():
            body["done"] = True
            body["error"] = _error_body(message.error)
    if isinstance(message, DoneMessage | FailedMessage) and message.route is not None:
        body["route"] = message.route
    return body


def encode(message: StreamMessage, *, multiplex: bool = False) -> bytes:
    """Return one message as JSON, with `multiplex` in the format of multiplexed requests."""
    return encode_multiplexed([message]) if multiplex else orjson.dumps(to_dict(message))


def encode_multiplexed(messages: Sequence[StreamMessage]) -> bytes:
    """Return several messages to one inbox as one, for requests with `multiplex`."""
    return orjson.dumps({"messages": [to_dict(message) for message in messages]})


def decode(payload: bytes) -> list[StreamMessage]:
    """Return the messages in `payload`: one, or several multiplexed ones.

    Raises:
        DecodeError: `payload` is not a message of a stream.
    """
    body = decode_object(payload)
    try:
        if "messages" in body:
            return [_from_dict(inner) for inner in body["messages"]]
        return [_from_dict(body)]
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"no message of a stream: {error!r}", payload) from None


def _from_dict(body: dict[str, Any]) -> StreamMessage:
    origin = (
        _checked(body["request_id"], str, type(None)),
        _checked(body["attempt"], int),
        _checked(body["worker"], str, type(None)),
    )
    if "status" in body:
        if body["status"] not in _STATUSES:
            raise ValueError(f"unknown status {body['status']!r}")
        progress = _optional(body, "progress", float, int)
        seed, reason = _optional(body, "seed", int), _optional(body, "reason", str)
        return StatusMessage(*origin, body["status"], progress, seed, reason)
    if not body.get("done"):
        usage = _usage_from(body["usage"]) if "usage" in body else None
        return ChunkMessage(*origin, _output_from(body), usage)
    if "error" in body:
        return FailedMessage(*origin, _error_from(body["error"]), _optional(body, "route", dict))
    outputs = body.get("choices") or ([body] if "index" in body else [])
    return DoneMessage(
        *origin,
        _usage_from(body["usage"]),
        Timings(*(_checked(body["timings"][name], float, int) for name in Timings.__slots__)),
        tuple(_output_from(output) for output in outputs),
        _optional(body, "route", dict),
        tuple(_checked(each, str) for each in _optional(body, "warnings", list) or ()),
    )


def _put_output(body: dict[str, Any], output: ChoiceOutput) -> dict[str, Any]:
    body["choice"] = output.choice
    body["index"] = output.index
    body["token_ids"] = output.token_ids
    body["text"] = output.text
    for name in _OPTIONAL_FIELDS:
        value = getattr(output, name)
        if value is not None:
            body[name] = value
    if output.error is not None:
        body["error"] = _error_body(output.error)
    if output.score is not None:
        body["score"] = output.score
    if output.embedding is not None:
        body["embedding"] = vectors.unpacked(output.embedding)
    return body


def _output_from(body: dict[str, Any]) -> ChoiceOutput:
    return ChoiceOutput(
        choice=_checked(body["choice"], int),
        index=_checked(body["index"], int),
        token_ids=_checked(body["token_ids"], list),
        text=_checked(body["text"], str),
        logprobs=_objects(body, "logprobs"),
        finish_reason=_optional(body, "finish_reason", str),
        reasoning=_optional(body, "reasoning", str),
        tool_calls=_objects(body, "tool_calls"),
        stop_sequence=_optional(body, "stop_sequence", str),
        error=_error_from(body["error"]) if "error" in body else None,
        embedding=vectors.packed(body["embedding"]) if "embedding" in body else None,
        score=float(_checked(body["score"], float, int)) if "score" in body else None,
    )


def _usage_from(body: dict[str, Any]) -> Usage:
    return Usage(
        _checked(body["prompt_tokens"], int),
        _checked(body["cached_tokens"], int),
        _checked(body["completion_tokens"], int),
        _checked(body.get("reasoning_tokens", 0), int),
    )


def _error_from(body: dict[str, Any]) -> ErrorDetails:
    return ErrorDetails(
        _checked(body["code"], str),
        _checked(body["message"], str),
        _optional(body, "param", str),
        _flag(body.get("retryable", False)),
        _optional(body, "retry_after_ms", int),
    )


def _objects(body: dict[str, Any], name: str) -> list[dict[str, Any]] | None:
    entries = _optional(body, name, list)
    return None if entries is None else [_checked(entry, dict) for entry in entries]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is no bool")
    return value


def _optional(body: dict[str, Any], name: str, *kinds: type[Any]) -> Any:
    return _checked(body.get(name), *kinds, type(None))


def _checked(value: Any, *kinds: type[Any]) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {kinds[0].__name__}")
    return value


def _error_body(error: ErrorDetails) -> dict[str, Any]:
    return {key: value for key, value in asdict(error).items() if value is not None}
