"""The earlier messages of a session, prepended to a turn that arrives without them.

Workers store the messages of the sessions that they served (`worker/sessions`). With the earlier
messages prepended, a dispatch contains the whole conversation: any worker can serve it, and another
worker can continue it.
"""

from collections.abc import Iterable, Sequence

from controller.requests.request import TrackedRequest
from shared.errors import RequestError
from shared.ids import WorkerId
from shared.messages.conversation import Message, turn_bytes
from shared.messages.json_bounds import MAX_LISTED_OBJECTS


def history_needed(request: TrackedRequest, home: WorkerId | None) -> bool:
    """Whether the request may be a turn without the earlier messages of its session.

    Args:
        home: the worker that served the session last, if known.
    """
    body = request.contents
    if request.session is None or not body.messages or body.history == "sent":
        return False
    if request.history or request.includes_history:
        return False
    alone = all(message.role in ("user", "tool") for message in body.messages)
    return body.history == "kept" or (home is not None and alone)


def history_to_prepend(
    request: TrackedRequest, stored: Sequence[Message] | None, too_large: bool, limit_bytes: int
) -> list[Message]:
    """Return the messages to prepend to a turn; none if the turn contains them already.

    Args:
        stored: all messages of the session; None if they are not available.
        too_large: they do not fit into one message.

    Raises:
        RequestError: they are no longer known, or too large.
    """
    assert request.session is not None
    body, session_id = request.contents, request.session[1]
    messages = body.messages or []
    if too_large:
        raise _too_large(session_id)
    if stored is None or (body.history == "kept" and not stored):
        raise RequestError(
            f"session_id: the earlier messages of {session_id!r} are not known (any more); "
            "send the whole conversation, with history: sent",
            code="unknown_session",
            param="session_id",
        )
    if body.history != "kept" and (not stored or _same(stored[0], messages[0])):
        return []
    is_too_long = len(stored) + len(messages) > MAX_LISTED_OBJECTS
    if is_too_long or _size(stored) + _size(messages) > limit_bytes:
        raise _too_large(session_id)
    return list(stored)


def _size(messages: Iterable[Message]) -> int:
    """Return the approximate size of messages in bytes."""
    return sum(turn_bytes(message.turn) + 50 for message in messages)


def _too_large(session_id: str) -> RequestError:
    return RequestError(
        f"session_id: the earlier messages of {session_id!r} are too large for one message",
        code="payload_too_large",
        param="session_id",
    )


def _same(message: Message, other: Message) -> bool:
    return message.role == other.role and message.text == other.text
