"""What a worker tells the leader that claims it, and whose work and orders it takes then."""

from typing import Any

import pytest

from shared.ids import ControllerId
from shared.messages.control import (
    AttachInbox,
    AttemptRef,
    CancelRequest,
    ClaimedRequest,
    ConfigureWorker,
    ControlReply,
    FencedOrder,
    ForgetSession,
    ListModels,
    PinSession,
    TellContents,
    TellSession,
)
from shared.messages.dispatch import Dispatch, DispatchBatch
from shared.messages.request_events import RequestCompleted, TokensEmitted
from tests.worker.running_agent import CLIENT, OWNER, ClientStream, RunningAgent
from tests.worker.streaming import streaming

pytestmark = pytest.mark.anyio

HEIR = ControllerId("heir")
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 400}


def ref(stream: ClientStream) -> AttemptRef:
    dispatch = stream.dispatch
    return AttemptRef(client=CLIENT, request_id=dispatch.request_id, attempt=dispatch.attempt)


def told_of(reply: ControlReply, stream: ClientStream) -> ClaimedRequest | None:
    """What a claim told of one request."""
    assert reply.claimed is not None
    found = [
        each for each in reply.claimed.requests if each.request_id == stream.dispatch.request_id
    ]
    return found[0] if found else None


async def contents(agent: RunningAgent, *streams: ClientStream) -> list[Dispatch]:
    order = TellContents(term=agent.term, requests=[ref(stream) for stream in streams])
    reply = await agent.control("contents", order)
    assert reply.ok
    return reply.contents


# What is told.


async def test_the_heir_hears_what_was_and_what_comes_and_nothing_is_missing_between(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(**SEEDED)
    await whole.done()
    stream = await agent.start(**SEEDED, elapsed_ms=50.0)
    await stream.started()
    claimed = told_of(await agent.claim(HEIR), stream)
    assert claimed is not None and claimed.state == "running" and claimed.tokens > 0
    (told,) = await contents(agent, stream)
    known = told.resume
    assert known is not None
    ids = known.token_ids[0]
    assert ids == whole.token_ids()[: len(ids)] and claimed.tokens <= len(ids) < 400
    assert (told.seed, told.attempt) == (stream.dispatch.seed, 0)
    assert told.request == stream.dispatch.request
    assert told.inboxes == stream.dispatch.inboxes
    assert told.elapsed_ms > (known.first_token_ms or 0) > 50
    await stream.done()
    await agent.settle()
    events = stream.events(HEIR)
    indexes = [event.index for event in events if isinstance(event, TokensEmitted)]
    assert indexes == list(range(indexes[0], 400))
    assert indexes[0] <= claimed.tokens, "events that wait at the claim go to the heir"
    assert isinstance(events[-1], RequestCompleted)
    assert not any(isinstance(event, RequestCompleted) for event in stream.events(OWNER))


async def test_from_what_the_heir_was_told_another_attempt_goes_on_exactly(
    agent: RunningAgent,
) -> None:
    whole = await agent.start(**SEEDED)
    await whole.done()
    before = (await agent.health()).worker.differing_requests
    stream = await agent.start(**SEEDED)
    await stream.started()
    await agent.claim(HEIR)
    (told,) = await contents(agent, stream)
    assert told.resume is not None
    again = await agent.start(
        **SEEDED, request_id=stream.dispatch.request_id, attempt=1001, goes_on=told.resume
    )
    await again.done()
    known = len(told.resume.token_ids[0])
    assert again.token_ids()[-(400 - known) :] == whole.token_ids()[known:]
    assert (await agent.health()).worker.differing_requests == before


async def test_of_a_request_that_has_not_begun_there_is_nothing_to_go_on_from(
    slow: RunningAgent,
) -> None:
    async with streaming(slow), streaming(slow):
        waiting = await slow.start(n=2, session_id="s-1")
        claimed = told_of(await slow.claim(HEIR), waiting)
        assert claimed is not None
        assert (claimed.state, claimed.tokens, claimed.session_id) == ("running", 0, "s-1")
        assert claimed.fingerprint == waiting.dispatch.request.fingerprint()
        (told,) = await contents(slow, waiting)
        assert told.resume is None
        await slow.cancel(waiting)


async def test_what_has_ended_is_told_to_each_leader(agent: RunningAgent) -> None:
    done, refused = await agent.start(), await agent.start(prompt=[10**6])
    await done.done()
    await refused.failed()
    told = await agent.claim(HEIR)
    good, bad = told_of(told, done), told_of(told, refused)
    assert good is not None and (good.state, good.failure) == ("finished", None)
    assert bad is not None and bad.state == "failed"
    assert bad.failure is not None and bad.failure.code == "invalid_request"
    assert await contents(agent, done, refused) == [], "its client has all of it"
    other = await agent.claim(OWNER)
    assert told_of(other, done) is not None


async def test_contents_come_in_pages_of_as_many_as_fit_into_a_message(
    narrow: RunningAgent,
) -> None:
    blocker = await narrow.start(max_tokens=900)
    page = narrow.wire.bus.max_payload // 4
    sizes = [page // 2, page // 3, page // 2, 2 * page]
    streams = [await narrow.start(prompt="x" * size) for size in sizes[:3]]
    assert [each.request for each in await contents(narrow, *streams)] == [
        stream.dispatch.request for stream in streams[:2]
    ]
    (rest,) = await contents(narrow, *streams[2:])
    assert rest.request == streams[2].dispatch.request
    await narrow.cancel_all(*streams)
    large = await narrow.start(prompt="x" * sizes[3])
    (told,) = await contents(narrow, large)
    assert told.request == large.dispatch.request, "one goes in any case"
    await narrow.cancel_all(large, blocker)


# Whose work and orders are taken.


async def test_work_is_refused_until_its_leader_has_claimed_the_worker(
    unclaimed: RunningAgent,
) -> None:
    agent = unclaimed
    assert (await agent.health()).worker.term == 0
    agent.term = 3  # as a leader that has not claimed it yet
    assert await agent.refusal_code() == "not_claimed"
    assert (await agent.claim(OWNER, term=3)).ok
    await (await agent.start()).done()
    agent.term = 4
    assert await agent.refusal_code() == "not_claimed"
    agent.term = 2
    assert await agent.refusal_code() == "stale_term"
    assert (await agent.health()).worker.term == 3


async def test_what_the_leader_before_sends_is_refused(agent: RunningAgent) -> None:
    """It was overtaken, and does not know yet."""
    stream = await agent.start(max_tokens=900)
    await stream.started()
    old = agent.term
    await agent.claim(HEIR)
    origin = {"request_id": stream.dispatch.request_id, "client": CLIENT}
    session = {"client": CLIENT, "session_id": "s"}
    orders: dict[str, FencedOrder] = {
        "cancel": CancelRequest(**origin, term=old),
        "attach": AttachInbox(**origin, attempt=0, inbox=agent.wire.new_inbox(), term=old),
        "contents": TellContents(requests=[ref(stream)], term=old),
        "session": TellSession(**session, term=old),
        "forget": ForgetSession(**session, term=old),
        "pin": PinSession(**session, term=old),
        "config": ConfigureWorker(version=0, dry_run=True, term=old),
    }
    for verb, order in orders.items():
        reply = await agent.control(verb, order)
        assert (reply.ok, reply.code) == (False, "stale_term"), verb
        assert reply.message is not None and str(HEIR) in reply.message
    assert (await agent.claim(OWNER, term=old)).code == "stale_term"
    batch = DispatchBatch(owner=OWNER, term=old, dispatches=[agent.dispatch()])
    (result,) = (await agent.send_batch(batch)).results
    assert result.refusal is not None and result.refusal.code == "stale_term"
    assert not stream.ends
    assert (await agent.cancel(stream, term=agent.term)).ok


async def test_another_controller_cannot_claim_it_in_the_same_term(agent: RunningAgent) -> None:
    """As two may think that they lead where there is no JetStream: the first one does."""
    reply = await agent.claim(HEIR, term=agent.term)
    assert (reply.ok, reply.code, reply.claimed) == (False, "stale_term", None)
    assert (await agent.claim(OWNER, term=agent.term)).ok
    await (await agent.start()).done()


async def test_orders_of_operators_have_no_term_and_are_taken(agent: RunningAgent) -> None:
    stream = await agent.start(max_tokens=900)
    await stream.started()
    assert (await agent.control("models", ListModels())).ok
    assert (await agent.cancel(stream)).ok
    await stream.done()
