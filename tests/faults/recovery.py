"""When is a cluster whole again? When all of it is there and it answers as it always did."""

import asyncio
from collections.abc import Sequence

from shared.client import connect
from shared.errors import ClusterError
from shared.messages.health import ClusterHealth
from tests.access.roles import as_client
from tests.faults.answers import Answer
from tests.faults.asks import Ask
from tests.faults.faults import processes_of
from tests.faults.load import Load, assert_exact
from tests.processes import ClusterProcess

_LIMIT_S = 40.0
_POLL_S = 0.1


async def whole_again(
    process: ClusterProcess, asks: Sequence[Ask], truths: Sequence[Answer]
) -> None:
    """Return once every controller, worker and engine that `cluster up` announced is ready
    (those that run now, not those that are remembered), and new requests over a new connection
    get their exact answers.

    Raises:
        AssertionError: that is not so within 40 s; says what is missing.
    """
    missing = "nothing was asked yet"
    try:
        async with asyncio.timeout(_LIMIT_S):
            while missing:
                missing = await _missing(process)
                if missing:
                    await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"not whole again within {_LIMIT_S} s: {missing}") from None
    async with connect(as_client(process.url)) as cluster:
        load = Load(asks)
        for record, truth in zip(await load.run(cluster), truths, strict=True):
            assert record.end == "done", f"after recovery {record.name} ended with {record.end}"
            assert_exact(record, truth)


async def _missing(process: ClusterProcess) -> str:
    assert process.process.poll() is None, "`cluster up` itself has ended"
    try:
        async with connect(as_client(process.url), wait_s=1) as cluster:
            health = await cluster.health()
    except ClusterError as error:
        return f"health: {error.message}"
    return _incomplete(process, health)


def _incomplete(process: ClusterProcess, health: ClusterHealth) -> str:
    alive = {engine.pid for engine in processes_of(process, "engine")}
    controllers = {str(controller.id) for controller in health.controllers}
    ready = {
        str(worker.id)
        for worker in health.workers
        if worker.state == "ready"
        and all(engine.state == "running" and engine.pid in alive for engine in worker.engines)
    }
    absent = {*process.ready["controllers"]} - controllers, {*process.ready["workers"]} - ready
    return f"controllers {absent[0]}, workers {absent[1]}" if any(absent) else ""
