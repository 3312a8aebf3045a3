"""The deadline of a connection: exactly one in every state that it can have."""

import itertools
import math

import pytest

from controller.gateway.connection_deadlines import (
    ConnectionState,
    ConnectionTimeouts,
    Phase,
    deadline,
)

_TIMEOUTS = ConnectionTimeouts(head_s=1, body_s=2, send_s=4, idle_s=8)
_MOMENTS = (None, 100.0)


def test_every_state_has_one_phase_and_only_an_answer_has_no_end_of_its_own() -> None:
    for head, body, responding, blocked, closing in itertools.product(
        _MOMENTS, _MOMENTS, (False, True), _MOMENTS, _MOMENTS
    ):
        state = ConnectionState(50.0, head, body, responding, blocked, closing)
        phase, ends_at = deadline(state, _TIMEOUTS)
        is_endless = phase is Phase.ANSWER
        assert math.isinf(ends_at) is is_endless
        assert is_endless is (responding and not (body or blocked or closing))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ConnectionState(50), (Phase.IDLE, 58)),
        (ConnectionState(50, head_since=60), (Phase.HEAD, 61)),
        (ConnectionState(50, head_since=60, responding=True), (Phase.ANSWER, math.inf)),
        (ConnectionState(50, body_since=60, responding=True), (Phase.BODY, 62)),
        (ConnectionState(50, body_since=60), (Phase.BODY, 62)),
        (
            ConnectionState(50, body_since=60, responding=True, blocked_since=70),
            (Phase.BLOCKED, 74),
        ),
        (ConnectionState(50, head_since=60, blocked_since=70), (Phase.BLOCKED, 74)),
        (
            ConnectionState(50, body_since=60, responding=True, closing_since=90),
            (Phase.CLOSING, 94),
        ),
        (ConnectionState(50, blocked_since=70, closing_since=90), (Phase.CLOSING, 94)),
    ],
)
def test_the_phase_is_what_the_connection_waits_for(
    state: ConnectionState, expected: tuple[Phase, float]
) -> None:
    assert deadline(state, _TIMEOUTS) == expected
