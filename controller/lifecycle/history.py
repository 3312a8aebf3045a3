"""What was said before in a session, put before a turn that comes alone.

A worker keeps what was said in the sessions that it served (`worker/sessions`). With that, what is
dispatched is the whole conversation: any worker can serve it, and another one can go on.
"""

from collections.abc import Iterable, Sequence

from controller.requests.request import ClientRequest
from shared.errors import RequestError
from shared.ids import WorkerId
from shared.messages.conversation import Message, turn_bytes


def history_needed(request: ClientRequest, home: WorkerId | None) -> bool:
    """Whether it may be a turn that came alone.

    Args:
        home: where its session was served last, if anybody knows.
    """
    body = request.contents
    if request.session is None or not body.messages or body.history == "sent":
        return False
    if request.earlier or request.joined:
        return False
    alone = all(message.role in ("user", "tool") for message in body.messages)
    return body.history == "kept" or (home is not None and alone)


def joined_history(
    request: ClientRequest, said: Sequence[Message] | None, too_large: bool, limit_bytes: int
) -> list[Message]:
    """The messages that go before those of a turn; none where it has them itself.

    Args:
        said: all messages of the session; None where that cannot be had.
        too_large: for a message.

    Raises:
        RequestError: they are not known any more, or too large.
    """
    assert request.session is not None
    body, session_id = request.contents, request.session[1]
    messages = body.messages or []
    if too_large:
        raise _too_large(session_id)
    if said is None or (body.history == "kept" and not said):
        raise RequestError(
            f"session_id: what was said in {session_id!r} is not known (any more); "
            "send the whole conversation, with history: sent",
            code="unknown_session",
            param="session_id",
        )
    if body.history != "kept" and (not said or _same(said[0], messages[0])):
        return []
    if _size(said) + _size(messages) > limit_bytes:
        raise _too_large(session_id)
    return list(said)


def _size(messages: Iterable[Message]) -> int:
    """About the bytes that messages take."""
    return sum(turn_bytes(message.turn) + 50 for message in messages)


def _too_large(session_id: str) -> RequestError:
    return RequestError(
        f"session_id: what was said in {session_id!r} has become too large for a message",
        code="payload_too_large",
        param="session_id",
    )


def _same(one: Message, other: Message) -> bool:
    return one.role == other.role and one.text == other.text
