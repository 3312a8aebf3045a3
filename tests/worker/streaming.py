"""Slow streams of a running agent to real inboxes, ended with the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil

from shared.messages.control import AttachInbox, CancelRequest, ControlReply
from tests.worker.listener import Listener
from tests.worker.running_agent import CLIENT, RunningAgent
from worker.requests.active_request import ActiveRequest

_LONG = 1000
_WORK_S = 0.01
_REST_S = 0.09


class Streaming:
    """One request and who listens to it."""

    def __init__(self, agent: RunningAgent, request: ActiveRequest, listener: Listener) -> None:
        self.agent = agent
        self.request = request
        self.id = request.dispatch.request_id
        self.listener = listener

    async def attach(self, *, attempt: int = 0, **fields: Any) -> tuple[ControlReply, Listener]:
        """Have the stream sent to one more inbox."""
        listener = await Listener.open(self.agent.wire.bus)
        order = AttachInbox(
            **{"request_id": self.id, "client": CLIENT, "inbox": listener.inbox, **fields},
            attempt=attempt,
        )
        return await self.agent.control("attach", order), listener

    async def cancel(self, *, silent: bool = False) -> ControlReply:
        order = CancelRequest(request_id=self.id, client=CLIENT, silent=silent)
        return await self.agent.control("cancel", order)


@asynccontextmanager
async def streaming(
    agent: RunningAgent, *, max_tokens: int = _LONG, **fields: Any
) -> AsyncIterator[Streaming]:
    """A request that was taken; what is left of it afterwards is cancelled."""
    listener = await Listener.open(agent.wire.bus)
    fields.setdefault("inboxes", [listener.inbox])
    dispatch = agent.dispatch(max_tokens=max_tokens, **fields)
    reply = await agent.send(dispatch)
    assert reply.results[0].refusal is None, reply
    request = agent.agent._scheduler.find((CLIENT, dispatch.request_id))
    assert request is not None
    stream = Streaming(agent, request, listener)
    try:
        yield stream
    finally:
        await stream.cancel(silent=True)


@asynccontextmanager
async def slowed(agent: RunningAgent) -> AsyncIterator[None]:
    """Meanwhile the engine works for a tenth of the time only."""
    pid = agent.agent.report().engines[0].pid
    assert pid is not None
    engine = psutil.Process(pid)

    async def slow_down() -> None:
        while True:
            engine.suspend()
            await asyncio.sleep(_REST_S)
            engine.resume()
            await asyncio.sleep(_WORK_S)

    slowing = asyncio.create_task(slow_down())
    try:
        yield
    finally:
        slowing.cancel()
        with suppress(asyncio.CancelledError):
            await slowing
        engine.resume()
