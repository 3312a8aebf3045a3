"""Waiting for a condition."""

import asyncio

import pytest

from shared.change_notifier import ChangeNotifier

pytestmark = pytest.mark.anyio


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    await asyncio.wait_for(ChangeNotifier().wait_until(lambda: True), 30)


async def test_a_waiter_is_checked_again_at_each_change_and_goes_on_when_it_holds() -> None:
    changes, state = ChangeNotifier(), {"value": 0}
    checks: list[int] = []

    def is_two() -> bool:
        checks.append(state["value"])
        return state["value"] == 2

    waiter = asyncio.create_task(changes.wait_until(is_two))
    for value in (1, 2):
        await one_turn()
        assert not waiter.done()
        state["value"] = value
        changes.notify()
    await asyncio.wait_for(waiter, 30)
    assert checks == [0, 1, 2]


async def test_without_a_change_nobody_wakes_up() -> None:
    changes, state = ChangeNotifier(), {"value": 0}
    waiter = asyncio.create_task(changes.wait_until(lambda: state["value"] == 1))
    await one_turn()
    state["value"] = 1
    await one_turn()
    assert not waiter.done()
    changes.notify()
    await asyncio.wait_for(waiter, 30)


async def test_one_change_wakes_all_who_wait_also_when_one_of_them_has_left() -> None:
    changes, state = ChangeNotifier(), {"open": False}
    waiters = [asyncio.create_task(changes.wait_until(lambda: state["open"])) for _ in range(3)]
    await one_turn()
    waiters[0].cancel()
    await one_turn()
    state["open"] = True
    changes.notify()
    await asyncio.wait_for(asyncio.gather(*waiters[1:]), 30)
    assert waiters[0].cancelled()


async def one_turn() -> None:
    """Let every task that is ready run once, and what that makes ready."""
    for _ in range(3):
        await asyncio.sleep(0)
