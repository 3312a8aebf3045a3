"""Whom deaths of engines blame: a model, or one request to it."""

import pytest

from shared.ids import ClientName, ModelId, RequestId
from worker.models.crash_history import CrashBlame, CrashHistory
from worker.requests.active_request import RequestKey

_MODEL, _OTHER = ModelId("model"), ModelId("other")
_MINUTES = 60.0


def _key(name: str) -> RequestKey:
    return ClientName("local"), RequestId(name)


def _keys(names: str) -> frozenset[RequestKey]:
    return frozenset(_key(name) for name in names)


class _Told:
    """Tells of deaths a second apart; requests are letters."""

    def __init__(self) -> None:
        self.deaths = CrashHistory()
        self.now = 0.0

    def died(self, requests: str = "", new: str = "", model: ModelId = _MODEL) -> CrashBlame:
        self.now += 1
        return self.deaths.record_crash(model, _keys(requests), _keys(new), self.now)


@pytest.mark.parametrize(
    "deaths",
    [("", ""), ("a", "b"), ("a", ""), ("", "a"), ("ab", "cd")],
    ids=["at load", "over two", "then at load", "at load before", "over groups"],
)
def test_two_deaths_without_a_request_in_common_blame_the_model(deaths: tuple[str, str]) -> None:
    told = _Told()
    first, second = deaths
    assert told.died(first) == CrashBlame(False, _keys(first))
    assert told.died(second) == CrashBlame(model_failed=True)


def test_two_deaths_over_one_request_blame_that_one_alone() -> None:
    told = _Told()
    assert told.died("abc") == CrashBlame(False, _keys("abc"))
    assert told.died("ade") == CrashBlame(False, _keys("a"))


def test_of_several_that_were_there_each_time_the_newcomers_are_suspected() -> None:
    told = _Told()
    told.died("abc")
    assert told.died("abcd", new="bd") == CrashBlame(False, _keys("b"))


def test_of_a_first_death_the_newcomers_are_suspected_and_else_all() -> None:
    assert _Told().died("abc", new="c") == CrashBlame(False, _keys("c"))
    assert _Told().died("abc") == CrashBlame(False, _keys("abc"))


def test_after_a_request_was_found_to_be_to_blame_its_deaths_do_not_count() -> None:
    told = _Told()
    told.died("a")
    told.died("a")
    assert told.died("b") == CrashBlame(False, _keys("b"))
    assert told.died("b") == CrashBlame(False, _keys("b"))


def test_a_model_that_ends_engines_over_one_request_after_the_other_is_to_blame() -> None:
    told = _Told()
    for request in "aabb":
        assert not told.died(request).model_failed
    assert told.died("c") == CrashBlame(model_failed=True)


def test_deaths_of_one_model_are_not_those_of_another() -> None:
    told = _Told()
    assert not told.died(model=_MODEL).model_failed
    assert not told.died(model=_OTHER).model_failed
    assert (told.deaths.count(_MODEL), told.deaths.count(_OTHER)) == (1, 1)


def test_after_ten_minutes_a_death_is_forgotten() -> None:
    told = _Told()
    assert not told.died().model_failed
    told.now += 10 * _MINUTES
    assert not told.died().model_failed
    told.now += 9 * _MINUTES
    assert told.died().model_failed


def test_a_model_that_was_forgiven_begins_anew() -> None:
    told = _Told()
    told.died()
    told.died()
    told.deaths.reset(_MODEL)
    assert told.deaths.count(_MODEL) == 0
    assert not told.died().model_failed


def test_a_request_is_a_suspect_until_somebody_is_found_to_be_to_blame() -> None:
    told = _Told()
    told.died("abc", new="a")
    assert [told.deaths.is_suspect(_MODEL, _key(name)) for name in "abcd"] == [True] * 3 + [False]
    assert not told.deaths.is_suspect(_OTHER, _key("a"))
    told.died("a")
    assert not told.deaths.is_suspect(_MODEL, _key("b"))


def test_kills_while_a_model_loads_are_chance_unless_three_come_in_a_row() -> None:
    deaths = CrashHistory()
    assert not deaths.record_kill(_MODEL, 1.0).model_failed
    assert not deaths.record_kill(_MODEL, 2.0).model_failed
    deaths.loaded(_MODEL)
    assert [deaths.record_kill(_MODEL, at).model_failed for at in (3.0, 4.0, 5.0)] == [
        False,
        False,
        True,
    ]
