"""Where the turns of a session go, by value; the clock is passed in."""

import pytest

from controller.fleet import session_affinity
from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.session_affinity import SessionAffinity
from shared.ids import ClientName, SessionKey, WorkerId
from tests.controller.values import ADA

ONE: SessionKey = (ADA, "one")
OTHER: SessionKey = (ADA, "other")
MAC, STUDIO = WorkerId("mac"), WorkerId("studio")


class Told(PrefixCacheIndex):
    """What workers told of sessions."""

    def __init__(self, **homes: str) -> None:
        self._homes = homes

    def home(self, session: SessionKey) -> WorkerId | None:
        told = self._homes.get(session[1])
        return WorkerId(told) if told is not None else None


def homes(ttl_s: float | None = 60, **told: str) -> SessionAffinity:
    return SessionAffinity(Told(**told), ttl_s=ttl_s)


def test_a_session_is_at_home_where_it_was_served_last() -> None:
    known = homes()
    assert known.home(ONE, 0) is None
    assert known.record_turn(ONE, MAC, 0) is None
    assert known.home(ONE, 0) == MAC
    assert known.record_turn(ONE, STUDIO, 1) == MAC
    assert (known.home(ONE, 1), known.last_worker(ONE), known.home(OTHER, 1)) == (
        STUDIO,
        STUDIO,
        None,
    )


def test_sessions_of_different_clients_are_different_ones() -> None:
    known = homes()
    known.record_turn(ONE, MAC, 0)
    assert known.home((ClientName("bob"), "one"), 0) is None


def test_after_its_time_a_session_has_no_home_but_is_still_known() -> None:
    known = homes()
    known.record_turn(ONE, MAC, 0)
    assert known.home(ONE, 60) == MAC
    assert (known.home(ONE, 60.5), known.last_worker(ONE)) == (None, MAC)


def test_each_turn_begins_the_time_again() -> None:
    known = homes()
    for now in (0, 50, 100):
        known.record_turn(ONE, MAC, now)
        assert known.home(ONE, now + 50) == MAC


def test_what_workers_tell_counts_where_nothing_is_known() -> None:
    known = homes(one="studio")
    assert (known.home(ONE, 0), known.last_worker(ONE)) == (STUDIO, STUDIO)
    assert known.record_turn(ONE, MAC, 0) is None  # who served it before is not for sure
    assert (known.home(ONE, 0), known.last_worker(ONE)) == (MAC, MAC)
    assert known.home(ONE, 61) is None


def test_sessions_that_are_not_sent_back_have_no_home_but_a_last_worker() -> None:
    known = homes(ttl_s=None, other="studio")
    known.record_turn(ONE, MAC, 0)
    assert [known.home(session, 0) for session in (ONE, OTHER)] == [None, None]
    assert [known.last_worker(session) for session in (ONE, OTHER)] == [MAC, STUDIO]


def test_of_too_many_sessions_those_go_that_were_longest_without_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_affinity, "_MAX_SESSIONS", 3)
    known = homes()
    sessions: list[SessionKey] = [(ADA, str(number)) for number in range(5)]
    for number in (0, 1, 2, 0, 3, 4):
        known.record_turn(sessions[number], MAC, 0)
    assert [known.home(session, 0) for session in sessions] == [MAC, None, None, MAC, MAC]
