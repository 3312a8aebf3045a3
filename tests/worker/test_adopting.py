"""A request's new owner is told all that the last one knew, and what comes."""

from pathlib import Path
from typing import Any

import pytest

from shared.ids import ControllerId
from shared.messages.control import (
    AdoptedRequest,
    AdoptRequest,
    ControlReply,
    ListRequests,
)
from shared.messages.dispatch import Continuation
from shared.messages.events import (
    RequestAdopted,
    RequestFailed,
    RequestFinished,
    TokensEmitted,
)
from tests.worker.running_agent import CLIENT, OWNER, ClientStream, RunningAgent
from tests.worker.streaming import streaming
from tests.worker.test_giving_back import Scheduled
from tests.worker.values import OWNER as FIRST
from tests.worker.values import dispatched

pytestmark = pytest.mark.anyio

HEIR = ControllerId("heir")
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 400}


async def adopt(agent: RunningAgent, stream: ClientStream) -> ControlReply:
    order = AdoptRequest(request_id=stream.dispatch.request_id, client=CLIENT, owner=HEIR)
    return await agent.control("adopt", order)


async def test_the_heir_hears_what_was_and_what_comes_and_nothing_is_missing_between(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(**SEEDED)
    await whole.done()
    stream = await agent.start(**SEEDED, elapsed_ms=50.0)
    await stream.started()
    adopted = (await adopt(agent, stream)).adopted
    assert adopted is not None and adopted.failure is None
    known = adopted.dispatch.resume
    assert known is not None
    ids = known.token_ids[0]
    assert ids == whole.token_ids()[: len(ids)] and len(ids) < 400
    assert (adopted.dispatch.seed, adopted.dispatch.attempt) == (stream.dispatch.seed, 0)
    assert adopted.dispatch.request == stream.dispatch.request
    assert adopted.dispatch.inboxes == stream.dispatch.inboxes
    assert adopted.dispatch.elapsed_ms > (known.first_token_ms or 0) > 50
    await stream.done()
    name = stream.dispatch.request_id
    indexes = [event.index for event in stream.events(HEIR) if isinstance(event, TokensEmitted)]
    assert indexes == list(range(len(ids), 400))
    assert any(isinstance(event, RequestFinished) for event in stream.events(HEIR))
    told = [event for event in stream.events() if isinstance(event, RequestAdopted)]
    assert [(event.request_id, event.owner) for event in told] == [(name, HEIR)]


async def test_from_what_the_heir_heard_another_attempt_goes_on_exactly(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(**SEEDED)
    await whole.done()
    before = (await agent.health()).worker.differing_requests
    stream = await agent.start(**SEEDED)
    await stream.started()
    adopted = (await adopt(agent, stream)).adopted
    assert adopted is not None and adopted.dispatch.resume is not None
    ids = adopted.dispatch.resume.token_ids[0]
    again = await agent.start(
        **SEEDED,
        request_id=stream.dispatch.request_id,
        attempt=1,
        goes_on=adopted.dispatch.resume,
    )
    await again.done()
    assert again.token_ids() == whole.token_ids()[len(ids) - 1 :]
    assert (await agent.health()).worker.differing_requests == before


async def test_of_a_request_that_has_not_begun_there_is_nothing_to_go_on_from(
    slow: RunningAgent,
) -> None:
    async with streaming(slow), streaming(slow):
        waiting = await slow.start(n=2, session_id="s-1")
        listing = await slow.control("requests", ListRequests(owner=OWNER))
        mine = waiting.dispatch.request_id
        (running,) = [each for each in listing.requests if each.request_id == mine]
        assert (running.tokens, running.session_id) == (0, "s-1")
        adopted = (await adopt(slow, waiting)).adopted
        assert adopted is not None and adopted.dispatch.resume is None
        await slow.cancel(waiting)


async def test_what_has_ended_or_was_never_here_cannot_be_adopted(agent: RunningAgent) -> None:
    stream = await agent.start()
    await stream.done()
    reply = await adopt(agent, stream)
    assert (reply.ok, reply.code, reply.adopted) == (False, "unknown_request", None)


# Given back to an owner who is gone.


def heir_of(worker: Scheduled, request_id: str) -> AdoptedRequest | None:
    return worker.scheduler.adopt((CLIENT, dispatched(request_id).request_id), HEIR)


def listed(worker: Scheduled, *, given_back: bool = True) -> set[str]:
    found: set[str] = {request.dispatch.request_id for request in worker.scheduler.owned_by(FIRST)}
    if given_back:
        back = worker.scheduler.given_back_to(FIRST)
        found |= {request.dispatch.request_id for request in back}
    return found


def test_what_was_given_back_is_told_to_the_heir_with_why_and_once(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("started", "not started")
    worker.generate("started")
    worker.die()
    assert listed(worker) == {"started", "not started"}
    assert listed(worker, given_back=False) == set()
    adopted = heir_of(worker, "started")
    assert adopted is not None and isinstance(adopted.failure, RequestFailed)
    assert adopted.failure.code == "engine_crashed" and not adopted.failure.suspect
    assert adopted.dispatch.resume is not None and adopted.dispatch.resume.token_ids == {0: [7]}
    assert heir_of(worker, "started") is None
    events = [event for each in worker.outgoing for event in each.events]
    told = [(to, event.owner) for to, event in events if isinstance(event, RequestAdopted)]
    assert told == [(FIRST, HEIR)], (
        "it may be there still, and hear only now that it was given back"
    )
    other = heir_of(worker, "not started")
    assert other is not None and other.failure is not None
    assert other.failure.suspect and other.dispatch.resume is None


@pytest.mark.parametrize(("attempt", "kept"), [(0, False), (-1, False), (1, True)])
def test_what_its_owner_got_back_is_nobody_elses(
    tiny_model: Path, attempt: int, kept: bool
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("r")
    worker.die()
    key = CLIENT, dispatched("r").request_id
    assert not worker.scheduler.cancel(key, attempt, silent=True)
    assert (heir_of(worker, "r") is not None) is kept


def test_what_comes_again_was_not_given_back(tiny_model: Path) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("r")
    worker.die()
    worker.engine.state = "running"
    before = Continuation(token_ids={0: [5, 6]}, text_sent={0: 2}, first_token_ms=9.0)
    assert worker.scheduler.accept(dispatched("r", attempt=1, goes_on=before), FIRST) is None
    adopted = heir_of(worker, "r")
    assert adopted is not None and adopted.failure is None
    assert (adopted.dispatch.attempt, adopted.dispatch.resume) == (
        1,
        before.model_copy(update={"cached_tokens": 0}),
    )


def test_what_was_given_back_is_forgotten_after_a_while(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Scheduled(tiny_model)
    worker.accept("r")
    worker.die()
    later = [request.received_at for request in worker.scheduler.given_back_to(None)]
    monkeypatch.setattr("time.monotonic", lambda: later[0] + 40)
    worker.scheduler.tick()
    assert listed(worker) == set()
