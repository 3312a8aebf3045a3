"""How many requests a client may have that have not ended, and how much of the leader's memory
they, and those of all clients, may take."""

from controller.requests.request import TrackedRequest
from controller.requests.store import RequestStore
from shared.messages.stream import ErrorDetails
from shared.settings.nats import ClientIsolationSettings

_RETRY_MS = 1000
_MIB = 1024 * 1024


def limit_exceeded(
    store: RequestStore, request: TrackedRequest, limits: ClientIsolationSettings
) -> ErrorDetails | None:
    """Return why a new request is refused, or None. What one client has is limited only where the
    server knows which client is which."""
    client, added = request.client, request.memory_bytes
    if limits.strict_inbox and store.count(client) >= limits.max_requests_per_client:
        limit = limits.max_requests_per_client
        return _error("rate_limit_exceeded", f"client {client} has {limit} active requests")
    of_client = store.memory_bytes(client) + added
    if limits.strict_inbox and of_client > (limit := limits.max_request_mb_per_client) * _MIB:
        text = f"the active requests of client {client} would take more than {limit} MB"
        return _error("rate_limit_exceeded", text)
    if store.memory_bytes() + added > (limit := limits.max_request_mb) * _MIB:
        return _error("queue_full", f"all active requests would take more than {limit} MB")
    return None


def _error(code: str, text: str) -> ErrorDetails:
    return ErrorDetails.of(code, f"{text}, the maximum", retry_after_ms=_RETRY_MS)
