"""Where the turns of a session go, by value; the clock is passed in."""

import pytest

from controller import session_homes
from controller.fleet.kept_prefixes import KeptByWorkers
from controller.fleet.session_homes import SessionHomes
from shared.ids import ClientName, SessionKey, WorkerId
from tests.controller.values import ADA
from tests.worker.virtual_time import Clock

ONE: SessionKey = (ADA, "one")
OTHER: SessionKey = (ADA, "other")
MAC, STUDIO = WorkerId("mac"), WorkerId("studio")


class Told(KeptByWorkers):
    """What workers told of sessions."""

    def __init__(self, **homes: str) -> None:
        self._homes = homes

    def home(self, session: SessionKey) -> WorkerId | None:
        told = self._homes.get(session[1])
        return WorkerId(told) if told is not None else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


def homes(clock: Clock, ttl_s: float | None = 60, **told: str) -> SessionHomes:
    return SessionHomes(Told(**told), ttl_s=ttl_s, clock=clock)


def test_a_session_is_at_home_where_it_was_served_last(clock: Clock) -> None:
    known = homes(clock)
    assert known.home(ONE) is None
    assert known.settle(ONE, MAC) is None
    assert known.home(ONE) == MAC
    assert known.settle(ONE, STUDIO) == MAC
    assert (known.home(ONE), known.last(ONE), known.home(OTHER)) == (STUDIO, STUDIO, None)


def test_sessions_of_different_clients_are_different_ones(clock: Clock) -> None:
    known = homes(clock)
    known.settle(ONE, MAC)
    assert known.home((ClientName("bob"), "one")) is None


def test_after_its_time_a_session_has_no_home_but_is_still_known(clock: Clock) -> None:
    known = homes(clock)
    known.settle(ONE, MAC)
    clock.now += 60
    assert known.home(ONE) == MAC
    clock.now += 0.5
    assert (known.home(ONE), known.last(ONE)) == (None, MAC)


def test_each_turn_begins_the_time_again(clock: Clock) -> None:
    known = homes(clock)
    for _ in range(3):
        known.settle(ONE, MAC)
        clock.now += 50
        assert known.home(ONE) == MAC


def test_what_workers_tell_counts_where_nothing_is_known(clock: Clock) -> None:
    known = homes(clock, one="studio")
    assert (known.home(ONE), known.last(ONE)) == (STUDIO, STUDIO)
    assert known.settle(ONE, MAC) is None  # who served it before is not for sure
    assert (known.home(ONE), known.last(ONE)) == (MAC, MAC)
    clock.now += 61
    assert known.home(ONE) is None


def test_sessions_that_are_not_sent_back_have_no_home_but_a_last_worker(clock: Clock) -> None:
    known = homes(clock, ttl_s=None, other="studio")
    known.settle(ONE, MAC)
    assert [known.home(session) for session in (ONE, OTHER)] == [None, None]
    assert [known.last(session) for session in (ONE, OTHER)] == [MAC, STUDIO]


def test_of_too_many_sessions_those_go_that_were_longest_without_a_turn(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_homes, "_MOST_HOMES", 3)
    known = homes(clock)
    sessions: list[SessionKey] = [(ADA, str(number)) for number in range(5)]
    for session in (sessions[0], sessions[1], sessions[2], sessions[0], sessions[3], sessions[4]):
        known.settle(session, MAC)
    assert [known.home(session) for session in sessions] == [MAC, None, None, MAC, MAC]
