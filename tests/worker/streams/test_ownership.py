"""Which streams a worker gives up after it was unreachable: those of which the leader says so."""

import pytest

from shared import subjects
from shared.bus import Bus, IncomingMessage
from shared.codec import encode
from shared.ids import ControllerId, RequestId, WorkerId
from shared.messages.control import RequestState
from tests.worker.values import CLIENT, MAC, active
from worker.streams.ownership import find_reassigned

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("request_id", "worker", "is_given_up"),
    [("r", "another", True), ("r", MAC, False), ("another", "another", False)],
    ids=["another worker has it", "it is its own", "an answer to another question"],
)
async def test_a_stream_is_given_up_if_the_leader_names_another_worker(
    bus: Bus, request_id: str, worker: str, is_given_up: bool
) -> None:
    request = active("r")
    state = RequestState(
        request_id=RequestId(request_id),
        state="running",
        controller=ControllerId("c"),
        worker=WorkerId(worker),
        attempt=request.dispatch.attempt,
    )

    async def answer(message: IncomingMessage) -> None:
        await bus.publish(message.reply, encode(state))

    await bus.subscribe(subjects.request(CLIENT, "status"), answer)
    await bus.flush()
    assert await find_reassigned(bus, MAC, [request]) == ([request] if is_given_up else [])
