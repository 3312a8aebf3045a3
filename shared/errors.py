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
    │   ├── InvalidSubject        a token of the subject is no valid name
    │   ├── OtherProtocol         the message has another protocol version
    │   └── WrongSender           the body names another sender than the subject
    └── BusError                  the connection to NATS
        ├── BusUnreachable        no server answers
        ├── NoResponders          no subscriber for the subject of a request
        ├── BusTimeout            a responder exists (or may) but did not answer in time
        ├── BusPermissionDenied   the user has no permission for the subject
        ├── NoJetStream           the server has no JetStream
        ├── WriteConflict         another writer has changed the value in JetStream
        ├── JetStreamFull         JetStream has no capacity left for the value
        └── PayloadTooLarge       the message exceeds the server's limit

Codes are stable: programs compare them, people read the message. `ERROR_CODES` lists all
of them, and `docs/wire.md` prints it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorCodeInfo:
    """The meaning of a code, and whether the same request may succeed later."""

    meaning: str
    retryable: bool


ERROR_CODES: Mapping[str, ErrorCodeInfo] = MappingProxyType(
    {
        "invalid_request": ErrorCodeInfo("A field is missing, unknown or out of range.", False),
        "not_supported": ErrorCodeInfo("The field is known but not supported yet.", False),
        "unauthenticated": ErrorCodeInfo("The API key is missing or unknown.", False),
        "not_allowed": ErrorCodeInfo("The API key does not allow this.", False),
        "not_permitted": ErrorCodeInfo("The user has no permission for this NATS subject.", False),
        "rate_limit_exceeded": ErrorCodeInfo(
            "The client, or its API key, exceeded its limit; see retry_after_ms.", True
        ),
        "not_found": ErrorCodeInfo("Nothing exists at this path, or under this id.", False),
        "store_unavailable": ErrorCodeInfo("The store cannot be read now.", True),
        "method_not_allowed": ErrorCodeInfo("This path does not support the method.", False),
        "request_timeout": ErrorCodeInfo("The request did not arrive completely in time.", True),
        "headers_too_large": ErrorCodeInfo(
            "The request has more or longer headers than allowed.", False
        ),
        "too_many_connections": ErrorCodeInfo(
            "The gateway has reached its connection limit.", True
        ),
        "payload_too_large": ErrorCodeInfo("The request has more bytes than allowed.", False),
        "unsupported_encoding": ErrorCodeInfo("The body is neither uncompressed nor gzip.", False),
        "reply_not_allowed": ErrorCodeInfo(
            "The reply subject is not an inbox of this client.", False
        ),
        "unknown_skill": ErrorCodeInfo("cluster.yaml has no such skill.", False),
        "unknown_model": ErrorCodeInfo("The model does not exist, or the skill lacks it.", False),
        "context_length_exceeded": ErrorCodeInfo(
            "The prompt leaves no context for an answer.", False
        ),
        "unknown_request": ErrorCodeInfo("No request with this id is known (any more).", False),
        "unknown_session": ErrorCodeInfo(
            "The history of this session is not stored; send the whole conversation.", False
        ),
        "session_quota": ErrorCodeInfo("Pinned sessions would exceed their quota.", False),
        "request_id_conflict": ErrorCodeInfo("The request_id was used with another body.", False),
        "requirements_unmet": ErrorCodeInfo("No worker has the required hardware or labels.", True),
        "no_worker": ErrorCodeInfo("No worker that can serve this is available.", True),
        "model_unavailable": ErrorCodeInfo(
            "The worker does not have the model, or loading failed.", True
        ),
        "model_in_use": ErrorCodeInfo("Requests use the model, so it cannot be unloaded.", True),
        "queue_full": ErrorCodeInfo("The queue is full; see retry_after_ms.", True),
        "circuit_open": ErrorCodeInfo(
            "The workers that could serve this failed recently; see retry_after_ms.", True
        ),
        "memory_pressure": ErrorCodeInfo("Memory is short; see retry_after_ms.", True),
        "draining": ErrorCodeInfo("The node is shutting down and accepts no requests.", True),
        "not_claimed": ErrorCodeInfo(
            "The worker accepts work only from the leader that claimed it.", True
        ),
        "stale_term": ErrorCodeInfo("Another controller leads now.", True),
        "deadline_exceeded": ErrorCodeInfo("timeout_ms passed before the request ended.", True),
        "worker_lost": ErrorCodeInfo("The worker that served this stopped responding.", True),
        "engine_crashed": ErrorCodeInfo("The engine process that served this crashed.", True),
        "request_crashes_engine": ErrorCodeInfo(
            "Two engine processes crashed on this request; it is not retried.", False
        ),
        "request_failed": ErrorCodeInfo("The engine could not process this request.", False),
        "no_controller": ErrorCodeInfo("No controller accepts requests on this server.", True),
        "stream_broken": ErrorCodeInfo("Messages of the stream were lost permanently.", True),
        "answer_too_large": ErrorCodeInfo(
            "The answer exceeds the size of one message; use stream: true.", False
        ),
        "client_gone": ErrorCodeInfo(
            "The stream had no subscriber any more, so the request was ended.", True
        ),
        "slow_consumer": ErrorCodeInfo("The client left too much of the stream unread.", True),
        "stream_silent": ErrorCodeInfo("No message of the stream arrived in time.", True),
        "disconnected": ErrorCodeInfo("The connection to NATS is lost.", True),
        "internal_error": ErrorCodeInfo("An error inside the cluster; please report it.", True),
        "answer_incomplete": ErrorCodeInfo(
            "The answer ended before its JSON was complete, for example at max_tokens.", False
        ),
        "answer_invalid": ErrorCodeInfo("The answer does not match the requested schema.", False),
        "settings": ErrorCodeInfo("A file, variable or flag has an invalid value.", False),
        "model": ErrorCodeInfo("A model cannot be found, loaded or parsed.", False),
        "decode": ErrorCodeInfo("The bytes are not a message of this protocol.", False),
        "bus": ErrorCodeInfo("The connection to NATS failed.", True),
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
        kind: what is wrong, as metrics count it.
        payload: all of the bytes.
    """

    code = "decode"
    kind: ClassVar[str] = "undecodable"

    def __init__(self, message: str, payload: bytes, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.payload = payload


class InvalidSubject(DecodeError):
    """Raised for a subject with a token that is no valid name; `payload` is the subject."""

    kind = "invalid_subject"


class OtherProtocol(DecodeError):
    """
    Attributes:
        protocol: the version of the message.
    """

    kind = "other_protocol"

    def __init__(self, message: str, payload: bytes, protocol: int) -> None:
        super().__init__(message, payload)
        self.protocol = protocol


class WrongSender(DecodeError):
    kind = "wrong_sender"


class BusError(ClusterError):
    code = "bus"


class BusUnreachable(BusError):
    pass


class NoResponders(BusError):
    pass


class BusTimeout(BusError):
    pass


class BusPermissionDenied(BusError):
    code = "not_permitted"


class NoJetStream(BusError):
    """The NATS server has no JetStream."""


class WriteConflict(BusError):
    pass


class JetStreamFull(BusError):
    pass


class PayloadTooLarge(BusError):
    code = "payload_too_large"
