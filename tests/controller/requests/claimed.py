"""What workers were given in a term before, as the next leader hears of it."""

from typing import Any

from controller.requests.instructions import SendControlOrder
from shared.ids import BootId, RequestId, WorkerId
from shared.messages.control import ClaimedRequest, TellContents
from shared.messages.dispatch import Continuation, Dispatch, DispatchBatch
from shared.messages.request_events import AttemptFailed
from tests.controller.requests.driven import LEADER, Driven
from tests.controller.requests.states import HELLO, HI
from tests.controller.requests.wire import Sent
from tests.controller.values import ADA, CHAT, DEMO, request

HAD = "_INBOX.had"
_AND: dict[str, Any] = {"role": "user", "content": "And?"}
ALONE: dict[str, Any] = {
    "prompt": None, "messages": [_AND], "session_id": "s", "history": "kept"
}  # fmt: skip
"""The body of a turn that came without what was said before."""


def old_dispatch(
    request_id: str = "r", attempt: int = 3, *token_ids: int, **fields: Any
) -> Dispatch:
    """What a worker was given in a term before, with what it has emitted since."""
    resume = Continuation(token_ids={0: list(token_ids)}, text_sent={0: 2}) if token_ids else None
    return Dispatch(
        request_id=RequestId(request_id),
        client=ADA,
        skill=CHAT,
        model=DEMO,
        attempt=attempt,
        inboxes=[HAD],
        seed=5,
        elapsed_ms=1000,
        request=request(request_id, **fields).contents,
        resume=resume,
    )


def turn_with_history() -> Dispatch:
    """A worker was given what was said before, too."""
    had = old_dispatch("r", 3, **{**ALONE, "messages": [HELLO, HI, _AND]})
    return had.model_copy(update={"fingerprint": request("r", **ALONE).fingerprint})


def key_of(had: Dispatch, state: str = "running", **fields: Any) -> ClaimedRequest:
    """What is told of it first."""
    tokens = sum(map(len, had.resume.token_ids.values())) if had.resume is not None else 0
    values = {
        "client": had.client, "request_id": had.request_id, "attempt": had.attempt, "state": state,
        "skill": had.skill, "model": had.model, "session_id": had.request.ordered_session,
        "fingerprint": had.body_fingerprint, "tokens": tokens,
    }  # fmt: skip
    if state in ("failed", "returned"):
        values["failure"] = failure_of(had)
    return ClaimedRequest.model_validate({**values, **fields})


def failure_of(had: Dispatch, code: str = "draining", **fields: Any) -> AttemptFailed:
    return AttemptFailed(
        request_id=had.request_id, client=had.client, attempt=had.attempt, code=code,
        message="it went back", **fields,
    )  # fmt: skip


def wanted(order: SendControlOrder) -> list[tuple[str, int]]:
    """Whose contents are asked for."""
    assert isinstance(order.order, TellContents) and order.order.term == 2, order
    return [(each.request_id, each.attempt) for each in order.order.requests]


def tell(driven: Driven, name: str, *had: Dispatch) -> None:
    """A worker has these: it tells their keys, then their contents."""
    driven.claimed(name, *map(key_of, had))
    driven.answer(driven.last_order("contents", name), driven.reply(name, contents=list(had)))


def taken_over(*had: Dispatch) -> Driven:
    """By the leader of term 2, from `w1`; `w2` has nothing."""
    driven = Driven("w2", term=2, unclaimed=["w1"])
    tell(driven, "w1", *had)
    driven.orders()
    return driven


def sent_before(had: Dispatch, name: str = "w1") -> Sent:
    """For what a worker says of what it had."""
    batch = DispatchBatch(owner=LEADER, term=1, dispatches=[had])
    return Sent(WorkerId(name), BootId("b1"), 0, batch)
