"""Whom deaths of engines blame: a model, one request to it, or one client."""

import pytest

from shared.ids import ClientName, ModelId, RequestId
from worker.models.crash_history import CrashBlame, CrashHistory
from worker.requests.active_request import RequestKey

_MODEL, _OTHER = ModelId("model"), ModelId("other")
_MINUTES = 60.0


def _key(name: str) -> RequestKey:
    """Small letters are requests of one client; a capital letter is one of a client so named."""
    return ClientName("local" if name.islower() else name), RequestId(name)


def _key_of(client: str, request: str) -> RequestKey:
    return ClientName(client), RequestId(request)


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

    def is_suspect(self, request: RequestKey, model: ModelId = _MODEL) -> bool:
        return self.deaths.is_suspect(model, request, self.now)

    def refuses(self, client: str) -> bool:
        return self.deaths.refuses(_MODEL, ClientName(client), self.now)


@pytest.mark.parametrize(
    "deaths",
    [("", ""), ("a", "B"), ("a", ""), ("", "a"), ("ab", "CD")],
    ids=["at load", "over two", "then at load", "at load before", "over groups"],
)
def test_two_deaths_with_no_request_and_no_client_in_common_blame_the_model(
    deaths: tuple[str, str],
) -> None:
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
    assert told.died("B") == CrashBlame(False, _keys("B"))
    assert told.died("B") == CrashBlame(False, _keys("B"))


def test_a_model_that_ends_engines_over_one_request_after_the_other_is_to_blame() -> None:
    told = _Told()
    for request in "aaBB":
        assert not told.died(request).model_failed
    assert told.died("C") == CrashBlame(model_failed=True)


@pytest.mark.parametrize("requests", [["a", "b"], ["a", "a", "b", "b", "c"], ["aB", "bC"]])
def test_deaths_over_requests_of_one_client_blame_that_client_alone(requests: list[str]) -> None:
    told = _Told()
    for each in requests[:-1]:
        assert told.died(each).clients == frozenset()
    last = requests[-1]
    own = _keys(last) & _keys("abc")
    assert told.died(last) == CrashBlame(False, own, frozenset({ClientName("local")}))
    assert told.refuses("local") and not told.refuses("C")
    told.now += 10 * _MINUTES + 1
    assert not told.refuses("local")


def test_of_the_clients_that_were_there_each_time_those_of_newcomers_are_blamed() -> None:
    told = _Told()
    told.died("aB", new="a")
    assert told.died("cB", new="c").clients == {ClientName("local")}


def _several(told: _Told, *, times: int) -> CrashBlame:
    """Deaths of one request each of two clients."""
    for number in range(times):
        told.now += 1
        requests = [_key_of(client, f"{client}-{number}") for client in ("eve", "bystander")]
        blame = told.deaths.record_crash(_MODEL, requests, requests, told.now)
    return blame


def test_of_clients_that_were_there_each_time_none_is_blamed_until_one_is_found() -> None:
    told = _Told()
    assert _several(told, times=2) == CrashBlame(False), "no request is ended for it, either"
    for client in ("eve", "bystander"):
        assert told.is_suspect(_key_of(client, "another")), "one at a time"
    assert not told.is_suspect(_key_of("other", "another"))
    alone = [_key_of("eve", "alone"), _key_of("bystander", "runs since long")]
    assert told.deaths.record_crash(_MODEL, alone, alone[:1], told.now).clients == {"eve"}
    assert not told.refuses("bystander")
    assert not told.is_suspect(_key_of("bystander", "another"))


def test_a_request_that_was_beside_newcomers_of_another_client_each_time_is_not_blamed() -> None:
    told = _Told()
    told.died("aB", new="aB")
    for number in range(2):
        requests = [_key("a"), _key_of("B", f"another-{number}")]
        assert told.deaths.record_crash(_MODEL, requests, requests, told.now) == CrashBlame(False)
    alone = [_key_of("B", "alone")]
    assert told.deaths.record_crash(_MODEL, alone, alone, told.now).clients == {"B"}


def test_clients_are_suspects_for_ten_minutes() -> None:
    told = _Told()
    _several(told, times=2)
    told.now += 10 * _MINUTES + 1
    assert not told.is_suspect(_key_of("eve", "another"))


def test_of_clients_that_no_death_tells_apart_all_are_blamed_after_four() -> None:
    told = _Told()
    assert _several(told, times=3).clients == frozenset()
    told = _Told()
    assert _several(told, times=4).clients == {"eve", "bystander"}


def test_a_client_whose_requests_end_engines_late_is_blamed_whoever_is_new_meanwhile() -> None:
    told = _Told()
    told.died("aB", new="B")
    assert told.died("bC", new="C").clients == {ClientName("local")}


def test_a_request_that_ends_engines_late_is_blamed_whoever_is_new_meanwhile() -> None:
    told = _Told()
    told.died("aB", new="B")
    assert told.died("aC", new="C") == CrashBlame(False, _keys("a"))
    told = _Told()
    told.died("ab", new="b")
    assert told.died("ac", new="c") == CrashBlame(False, _keys("a"))


def test_a_second_client_whose_requests_end_engines_is_evidence_against_the_model() -> None:
    told = _Told()
    told.died("a")
    told.died("b")
    assert not told.died("C").model_failed
    assert told.deaths.record_crash(_MODEL, [_key_of("C", "c2")], [], told.now).model_failed


def test_who_has_the_model_loaded_anew_forgives_its_clients() -> None:
    told = _Told()
    told.died("a")
    told.died("b")
    told.deaths.reset(_MODEL)
    assert not told.refuses("local")


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
    assert [told.is_suspect(_key(name)) for name in "abcd"] == [True] * 3 + [False]
    assert not told.is_suspect(_key("a"), _OTHER)
    told.died("a")
    assert not told.is_suspect(_key("b"))


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
