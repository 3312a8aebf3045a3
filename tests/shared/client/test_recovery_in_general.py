"""Whatever happens to a stream: it never floods the cluster with questions, and never hangs."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.client.recovery import RecoveryInputs, Step, StreamRecovery
from shared.errors import StreamFailed, Unavailable
from shared.messages.control import RequestStateName, ResendStateName

_A_FEW = 8
_LATENCY_S = 0.01


@dataclass(frozen=True, slots=True)
class World:
    """How the cluster answers each question for a while; None: not at all."""

    situation: RecoveryInputs
    lasts_s: float
    speaks: bool
    infer: bool | None  # True: a message; False: 503
    status: tuple[RequestStateName, bool] | None
    resend: ResendStateName | bool | None  # False: 503


_STATES: list[tuple[RequestStateName, bool] | None] = [
    ("accepted", False), ("dispatching", True), ("running", True), ("running", False),
    ("finished", True), ("finished", False), ("failed", True), ("failed", False),
    ("unknown", False), None,
]  # fmt: skip
_RESENDS: list[ResendStateName | bool | None] = ["running", "finished", "unknown", False, None]
_SITUATIONS = st.builds(
    RecoveryInputs,
    connected=st.sampled_from([True, True, True, False]),
    connections=st.integers(1, 3),
    received_any=st.booleans(),
    started=st.booleans(),
    worker_known=st.booleans(),
    missing=st.booleans(),
)
_WORLDS = st.builds(
    World,
    situation=_SITUATIONS,
    lasts_s=st.sampled_from([1.0, 3.5]),
    speaks=st.booleans(),
    infer=st.sampled_from([True, False, None]),
    status=st.sampled_from(_STATES),
    resend=st.sampled_from(_RESENDS),
)


def _answer(recovery: StreamRecovery, world: World, step: Step, now: float) -> bool:
    """Whether there is one."""
    if step in ("publish", "resume") and world.infer is not None:
        (recovery.on_message if world.infer else recovery.on_no_controller)(now)
    elif step == "ask_status" and world.status is not None:
        recovery.on_state(*world.status, now)
    elif step == "ask_resend" and world.resend is not None:
        if isinstance(world.resend, str):
            recovery.on_resend_state(world.resend, now)
        else:
            recovery.on_no_worker()
    else:
        return False
    return True


def _live(recovery: StreamRecovery, world: World, now: float) -> tuple[float, list[float]]:
    """One world from its begin to its end: the time then, and when something was asked.

    Raises: as `next_step` does.
    """
    asked: list[float] = []
    end = now + world.lasts_s
    while now < end:
        if world.speaks:
            recovery.on_message(now)
        step = recovery.next_step(now, world.situation)
        if step is not None:
            asked.append(now)
        if step is not None and _answer(recovery, world, step, now):
            now += _LATENCY_S
        else:
            now += recovery.wait_s(now, world.situation)
    return now, asked


@settings(max_examples=500)
@given(st.lists(_WORLDS, min_size=2, max_size=8))
def test_never_more_than_a_few_questions_are_asked_within_a_second(worlds: list[World]) -> None:
    now = 100.0
    recovery = StreamRecovery(now, 1)
    asked: list[float] = []
    try:
        for world in worlds:
            now, more = _live(recovery, world, now)
            asked += more
    except (StreamFailed, Unavailable):
        pass  # given up: nothing more is asked
    for first in asked:
        assert sum(first <= one < first + 1 for one in asked) <= _A_FEW


@given(st.lists(_WORLDS, max_size=5), _WORLDS)
def test_where_nothing_comes_any_more_it_ends(worlds: list[World], last: World) -> None:
    now = 100.0
    recovery = StreamRecovery(now, 1)
    try:
        for world in worlds:
            now, _ = _live(recovery, world, now)
    except (StreamFailed, Unavailable):
        return
    silent = replace(last, lasts_s=16.0, speaks=False, infer=None, status=None, resend=None)
    with pytest.raises((StreamFailed, Unavailable)):
        _live(recovery, silent, now)
