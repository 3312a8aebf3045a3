"""Whole requests in any order of what may happen to them: none is lost, none is answered twice."""

import logging
from collections.abc import Iterator, Sequence

import pytest

from tests.controller.virtual.clock import run_in_virtual_time
from tests.controller.virtual.cluster import VirtualCluster
from tests.controller.virtual.steps import (
    CONTROLLERS,
    REQUESTS,
    Ask,
    Kill,
    Step,
    Wait,
)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Of thousands of requests that have bad luck nobody reads the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def follow(*steps: Step) -> None:
    """Do these steps in a cluster; in the end all must be in order."""
    run_in_virtual_time(_life(steps))


async def _life(steps: Sequence[Step]) -> None:
    cluster = VirtualCluster()
    await cluster.start()
    for step in steps:
        await cluster.do(step)
    await cluster.settle()
    await cluster.check()
    await cluster.close()


def test_requests_of_all_kinds_are_served_by_whichever_controller() -> None:
    follow(*(Ask(number, via) for number in range(REQUESTS) for via in CONTROLLERS))


def test_with_one_worker_after_the_other_gone_all_requests_end() -> None:
    follow(Ask(0, "c-1"), Ask(2, "c-2"), Wait(0.06), Kill("w-1"), Ask(3, "c-2"), Kill("w-2"))
