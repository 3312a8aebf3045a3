"""The one error tree.

    ClusterError                  has code, message, param, retryable, retry_after_ms
    ├── RequestError              the request is invalid; sent again, it fails again
    │   └── InvalidRequest        one field is invalid; `param` names it
    ├── Unavailable               the request is valid, but cannot be served now
    ├── StreamFailed              an accepted request ended in an error message
    │   └── StreamSilent          no message arrived in time, or the connection is lost
    ├── InvalidAnswer             a whole answer does not match its schema; has the text
    ├── SettingsError             a file, variable or flag has an invalid value
    ├── ModelError                a model cannot be found, loaded or parsed
    ├── DecodeError               bytes that are not a message; has the bytes
    └── BusError                  the connection to NATS
        ├── BusUnreachable        no server answers
        ├── NoResponders          no subscriber for the subject of a request
        ├── RequestTimedOut       a responder exists (or may) but did not answer in time
        ├── NotPermitted          the server does not permit this user the subject
        ├── NoJetStream           the server has no JetStream
        ├── WriteConflict         another writer has changed the value in JetStream
        ├── StoreFull             JetStream has no capacity left for the value
        └── PayloadTooLarge       the message exceeds the server's limit

Codes are stable: programs compare them, people read the message. `ERROR_CODES` lists all
of them, and `docs/wire.md` prints it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The meaning of a code, and whether the same request may succeed later."""

    meaning: str
    retryable: bool


ERROR_CODES: Mapping[str, ErrorCode] = MappingProxyType(
    {
        "invalid_request": ErrorCode("A field is missing, unknown or out of range.", False),
        "not_supported": ErrorCode("The field is known but not supported yet.", False),
        "unauthenticated": ErrorCode("The API key is missing or unknown.", False),
        "not_allowed": ErrorCode("The API key does not allow this.", False),
        "not_permitted": ErrorCode("The NATS server does not permit this to the user.", False),
        "rate_limit_exceeded": ErrorCode(
            "The client, or its API key, exceeded its limit; see retry_after_ms.", True
        ),
        "not_found": ErrorCode("Nothing exists at this path, or under this id.", False),
        "store_unavailable": ErrorCode("The store cannot be read now.", True),
        "method_not_allowed": ErrorCode("This path does not support the method.", False),
        "request_timeout": ErrorCode("The request did not arrive completely in time.", True),
        "headers_too_large": ErrorCode(
            "The request has more or longer headers than allowed.", False
        ),
        "too_many_connections": ErrorCode("The gateway has reached its connection limit.", True),
        "payload_too_large": ErrorCode("The request has more bytes than allowed.", False),
        "unsupported_encoding": ErrorCode("The body is neither uncompressed nor gzip.", False),
        "reply_not_allowed": ErrorCode("The reply subject is not an inbox of this client.", False),
        "unknown_skill": ErrorCode("cluster.yaml has no such skill.", False),
        "unknown_model": ErrorCode("The model does not exist, or the skill lacks it.", False),
        "context_length_exceeded": ErrorCode("The prompt leaves no context for an answer.", False),
        "unknown_request": ErrorCode("No request with this id is known (any more).", False),
        "unknown_session": ErrorCode(
            "The history of this session is not stored; send the whole conversation.", False
        ),
        "session_quota": ErrorCode("Pinned sessions would exceed their quota.", False),
        "request_id_conflict": ErrorCode("The request_id was used with another body.", False),
        "requirements_unmet": ErrorCode("No worker has the required hardware or labels.", True),
        "no_worker": ErrorCode("No worker that can serve this is available.", True),
        "model_unavailable": ErrorCode(
            "The worker does not have the model, or loading failed.", True
        ),
        "model_in_use": ErrorCode("Requests use the model, so it cannot be unloaded.", True),
        "queue_full": ErrorCode("The queue is full; see retry_after_ms.", True),
        "circuit_open": ErrorCode(
            "The workers that could serve this failed recently; see retry_after_ms.", True
        ),
        "memory_pressure": ErrorCode("Memory is short; see retry_after_ms.", True),
        "draining": ErrorCode("The node is shutting down and accepts no requests.", True),
        "not_claimed": ErrorCode(
            "The worker accepts work only from the leader that claimed it.", True
        ),
        "stale_term": ErrorCode("Another controller leads now.", True),
        "deadline_exceeded": ErrorCode("timeout_ms passed before the request ended.", True),
        "worker_lost": ErrorCode("The worker that served this stopped responding.", True),
        "engine_crashed": ErrorCode("The engine process that served this crashed.", True),
        "request_crashes_engine": ErrorCode(
            "Two engine processes crashed on this request; it is not retried.", False
        ),
        "request_failed": ErrorCode("The engine could not process this request.", False),
        "no_controller": ErrorCode("No controller accepts requests on this server.", True),
        "stream_broken": ErrorCode("Messages of the stream were lost permanently.", True),
        "answer_too_large": ErrorCode(
            "The answer exceeds the size of one message; use stream: true.", False
        ),
        "client_gone": ErrorCode(
            "The stream had no subscriber any more, so the request was ended.", True
        ),
        "slow_consumer": ErrorCode("The client left too much of the stream unread.", True),
        "stream_silent": ErrorCode("No message of the stream arrived in time.", True),
        "disconnected": ErrorCode("The connection to NATS is lost.", True),
        "internal_error": ErrorCode("An error inside the cluster; please report it.", True),
        "answer_incomplete": ErrorCode(
            "The answer ended before its JSON was complete, for example at max_tokens.", False
        ),
        "answer_invalid": ErrorCode("The answer does not match the requested schema.", False),
        "settings": ErrorCode("A file, variable or flag has an invalid value.", False),
        "model": ErrorCode("A model cannot be found, loaded or parsed.", False),
        "decode": ErrorCode("The bytes are not a message of this protocol.", False),
        "bus": ErrorCode("The connection to NATS failed.", True),
    }
)


_OF_THE_REQUEST = frozenset({
    "invalid_request", "not_supported", "not_allowed", "payload_too_large", "unknown_skill",
    "unknown_model", "context_length_exceeded", "unknown_session", "request_id_conflict",
    "client_gone", "slow_consumer",
})  # fmt: skip


def is_caused_by_request(code: str) -> bool:
    """Whether the request or its client caused the error, so no other worker would succeed."""
    return code in _OF_THE_REQUEST


def is_retryable(code: str) -> bool:
    """Whether the same request may succeed later; False for codes of a newer version."""
    return code in ERROR_CODES and ERROR_CODES[code].retryable


class ClusterError(Exception):
    """Root of the tree; raised only through its subclasses."""

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param
        self.retryable = is_retryable(self.code)
        self.retry_after_ms = retry_after_ms


class RequestError(ClusterError):
    code = "invalid_request"


class InvalidRequest(RequestError):
    """One field of a request is invalid; `param` is its path, for example `messages.0.role`."""


class Unavailable(ClusterError):
    code = "no_worker"


class StreamFailed(ClusterError):
    """An accepted request ended in an error; `code` and `retryable` come from its message."""


class StreamSilent(StreamFailed):
    code = "stream_silent"


class InvalidAnswer(ClusterError):
    """Raised by a client that requested a value of a schema.

    Attributes:
        text: the answer, as far as it arrived.
    """

    code = "answer_invalid"

    def __init__(self, message: str, text: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.text = text


class SettingsError(ClusterError):
    code = "settings"


class ModelError(ClusterError):
    code = "model"


class DecodeError(ClusterError):
    """Raised for bytes that are not a message.

    Attributes:
        payload: all of the bytes.
    """

    code = "decode"

    def __init__(self, message: str, payload: bytes, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.payload = payload


class BusError(ClusterError):
    code = "bus"


class BusUnreachable(BusError):
    pass


class NoResponders(BusError):
    pass


class RequestTimedOut(BusError):
    pass


class NotPermitted(BusError):
    code = "not_permitted"


class NoJetStream(BusError):
    """The NATS server has no JetStream."""


class WriteConflict(BusError):
    pass


class StoreFull(BusError):
    pass


class PayloadTooLarge(BusError):
    code = "payload_too_large"
