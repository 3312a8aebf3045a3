"""A worker answers each dispatch, also one that it cannot read or cannot pass on."""

import pytest

from shared import subjects
from shared.codec import decode, encode
from shared.messages.dispatch import Dispatch, DispatchReply, encode_batch
from shared.messages.stream import FailedMessage
from tests.worker.running_agent import LIMIT_S, RunningAgent

pytestmark = pytest.mark.anyio


def _with_values(dispatch: Dispatch, values: bytes) -> bytes:
    """The dispatch as bytes, with values for the chat template that no model of ours would keep."""
    field = b'"chat_template_kwargs":{}'
    encoded = encode(dispatch)
    assert encoded.count(field) == 1
    return encoded.replace(field, b'"chat_template_kwargs":{"x":%s}' % values)


async def _send(agent: RunningAgent, payload: bytes) -> DispatchReply:
    answer = await agent.wire.bus.request(
        subjects.worker_infer(agent.id), payload, timeout_s=LIMIT_S
    )
    return decode(DispatchReply, answer.payload)


def _chat(agent: RunningAgent) -> Dispatch:
    return agent.dispatch(messages=[{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("depth", [195, 220, 300, 900])
async def test_one_that_is_nested_too_deeply_is_refused_and_its_company_is_served(
    agent: RunningAgent, depth: int
) -> None:
    good, bad, also_good = _chat(agent), _chat(agent), _chat(agent)
    nested = _with_values(bad, b"[" * depth + b"]" * depth)
    parts = [encode(good), nested, encode(also_good)]
    reply = await _send(agent, encode_batch(agent.leader, agent.term, parts))
    assert [result.request_id for result in reply.results] == [
        each.request_id for each in (good, bad, also_good)
    ]
    assert reply.results[0].refusal is reply.results[2].refusal is None
    if depth > 200:
        assert reply.results[1].refusal is not None
        assert reply.results[1].refusal.code == "invalid_request"
    for dispatch in (good, also_good):
        await agent.stream(dispatch).done()


async def test_what_cannot_be_read_at_all_is_answered(agent: RunningAgent) -> None:
    for payload in (b"\xff\xfe", b"[" * 100_000, b'{"owner":"c","dispatches":7}'):
        reply = await _send(agent, payload)
        assert reply.results == []
        assert reply.refusal is not None and reply.refusal.code == "invalid_request"


@pytest.mark.parametrize("queued", [False, True])
async def test_a_number_that_no_engine_can_be_sent_ends_its_request_alone(
    agent: RunningAgent, narrow: RunningAgent, queued: bool
) -> None:
    worker = narrow if queued else agent
    blockers = [await worker.start(max_tokens=100) for _ in range(2 if queued else 0)]
    bad = _chat(worker)
    payload = _with_values(bad, b"9" * 30)
    reply = await _send(worker, encode_batch(worker.leader, worker.term, [payload]))
    good = await worker.start()
    if reply.results[0].refusal is None:
        stream = worker.stream(bad)
        await stream.until(lambda each: bool(each.ends))
        (end,) = stream.ends
        assert isinstance(end, FailedMessage) and end.error.code == "request_failed"
        assert not end.error.retryable
    for stream in (*blockers, good):
        await stream.done()
    assert not worker.life.done()
