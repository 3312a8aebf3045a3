"""The one error tree.

    ClusterError                  has code, message, param, retryable, retry_after_ms
    ├── RequestError              the request itself is wrong; the same again fails again
    │   └── InvalidRequest        one field is wrong; `param` names it
    ├── Unavailable               nothing is wrong with the request; later or elsewhere it works
    ├── StreamFailed              an accepted request ended in an error message
    │   └── StreamSilent          nothing was heard in time, or the connection is gone
    ├── InvalidAnswer             a whole answer is no value of the schema asked for; holds it
    ├── SettingsError             a file, variable or flag holds a bad value
    ├── ModelError                a model cannot be found, loaded or understood
    ├── DecodeError               bytes that are no message; holds the bytes
    └── BusError                  the connection to NATS
        ├── BusUnreachable        no server answers
        ├── NoResponders          nobody subscribes to the subject of a request
        ├── RequestTimedOut       a responder exists (or may) but did not answer in time
        ├── NotPermitted          the server does not let this user say that
        ├── NoJetStream           the server has none
        ├── WriteConflict         somebody else has written since to what JetStream keeps
        ├── StoreFull             no room is left for what JetStream was to keep
        └── PayloadTooLarge       more bytes than the server takes

Codes are the stable part: programs compare them, people read the message. All of them
stand in `ERROR_CODES`, which `docs/wire.md` prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """What a code means, and whether the same request may work when sent again."""

    meaning: str
    retryable: bool


ERROR_CODES: Mapping[str, ErrorCode] = MappingProxyType(
    {
        "invalid_request": ErrorCode("A field is missing, unknown or out of range.", False),
        "not_supported": ErrorCode("The field is known but not served yet.", False),
        "unauthenticated": ErrorCode("The API key is missing, or not known here.", False),
        "not_allowed": ErrorCode("The API key does not allow this.", False),
        "not_permitted": ErrorCode("The NATS server does not let this user do that.", False),
        "rate_limit_exceeded": ErrorCode(
            "More than the client, or its API key, may ask for; see retry_after_ms.", True
        ),
        "not_found": ErrorCode("There is nothing at this path, or under this id.", False),
        "store_unavailable": ErrorCode("What is stored cannot be read now.", True),
        "method_not_allowed": ErrorCode("This path does not take that method.", False),
        "request_timeout": ErrorCode("The request did not come in whole in time.", True),
        "headers_too_large": ErrorCode("The request has more or longer headers than taken.", False),
        "too_many_connections": ErrorCode("The gateway has all the connections it takes.", True),
        "payload_too_large": ErrorCode("The request has more bytes than allowed.", False),
        "unsupported_encoding": ErrorCode("The body is neither plain nor gzip.", False),
        "reply_not_allowed": ErrorCode("The reply subject is not an inbox of this client.", False),
        "unknown_skill": ErrorCode("cluster.yaml names no such skill.", False),
        "unknown_model": ErrorCode("No such model, or the skill does not have it.", False),
        "context_length_exceeded": ErrorCode("The prompt leaves no room in the context.", False),
        "unknown_request": ErrorCode("Nobody knows a request of this id (any more).", False),
        "unknown_session": ErrorCode(
            "What was said in this session is not known here; send the whole conversation.", False
        ),
        "session_quota": ErrorCode("Pinned sessions would take too much.", False),
        "request_id_conflict": ErrorCode("The same request_id came with another body.", False),
        "requirements_unmet": ErrorCode("No worker has the required hardware or labels.", True),
        "no_worker": ErrorCode("No worker that could serve this is there now.", True),
        "model_unavailable": ErrorCode(
            "The worker does not have the model, or loading failed.", True
        ),
        "model_in_use": ErrorCode("Requests use the model, so it is not unloaded.", True),
        "queue_full": ErrorCode("The queue has no room; see retry_after_ms.", True),
        "circuit_open": ErrorCode(
            "The workers that could serve this failed lately; see retry_after_ms.", True
        ),
        "memory_pressure": ErrorCode("Memory is short; see retry_after_ms.", True),
        "draining": ErrorCode("The node is shutting down and takes nothing new.", True),
        "not_claimed": ErrorCode("The worker takes work only of the leader that claimed it.", True),
        "stale_term": ErrorCode("Another controller leads now.", True),
        "deadline_exceeded": ErrorCode("timeout_ms passed before the end.", True),
        "worker_lost": ErrorCode("The worker that served this stopped answering.", True),
        "engine_crashed": ErrorCode("The engine process that served this ended.", True),
        "request_crashes_engine": ErrorCode(
            "Two engine processes ended over this request; it is not tried again.", False
        ),
        "request_failed": ErrorCode("The engine could not process this request.", False),
        "no_controller": ErrorCode("Nobody takes requests on this NATS server.", True),
        "stream_broken": ErrorCode("Messages of the stream were lost for good.", True),
        "answer_too_large": ErrorCode(
            "The answer has more bytes than one message may have; ask with stream: true.", False
        ),
        "client_gone": ErrorCode("Nobody listened to the stream any more, so it was ended.", True),
        "slow_consumer": ErrorCode("The client left too much of the stream unread.", True),
        "stream_silent": ErrorCode("Nothing was heard of the stream in time.", True),
        "disconnected": ErrorCode("The connection to NATS is gone.", True),
        "internal_error": ErrorCode("A fault of the cluster's own; please report it.", True),
        "answer_incomplete": ErrorCode(
            "The answer ended, as at max_tokens, before it was whole JSON.", False
        ),
        "answer_invalid": ErrorCode("The answer is no value of the schema it was asked by.", False),
        "settings": ErrorCode("A file, variable or flag holds a bad value.", False),
        "model": ErrorCode("A model cannot be found, loaded or understood.", False),
        "decode": ErrorCode("The bytes are no message of this protocol.", False),
        "bus": ErrorCode("The connection to NATS failed.", True),
    }
)


_OF_THE_REQUEST = frozenset({
    "invalid_request", "not_supported", "not_allowed", "payload_too_large", "unknown_skill",
    "unknown_model", "context_length_exceeded", "unknown_session", "request_id_conflict",
    "client_gone", "slow_consumer",
})  # fmt: skip


def is_of_the_request(code: str) -> bool:
    """Whether an end lies in what was asked, or in who asked: no worker would have done better."""
    return code in _OF_THE_REQUEST


def is_retryable(code: str) -> bool:
    """Whether the same request may work later; False for codes of a newer version."""
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
    """One field of a request is wrong; `param` is its path, for example `messages.0.role`."""


class Unavailable(ClusterError):
    code = "no_worker"


class StreamFailed(ClusterError):
    """An accepted request ended in an error; code and retryable are those of the wire."""


class StreamSilent(StreamFailed):
    code = "stream_silent"


class InvalidAnswer(ClusterError):
    """Raised by a client that asked for a value of a schema.

    Attributes:
        text: the answer, as far as it came.
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
    """Raised for bytes that are no message.

    Attributes:
        payload: the bytes, whole.
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
