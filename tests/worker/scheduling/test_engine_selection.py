"""Which engine gets the next request."""

from dataclasses import dataclass

from shared.ids import ClientName, ModelId
from worker.engine_process.process import EngineState
from worker.scheduling.engine_selection import EngineSelector

_ALL = {0, 1, 2}
_TINY, _DEMO = ModelId("tiny"), ModelId("demo")
_ANN = (ClientName("ann"), "talk")


@dataclass
class Engine:
    index: int
    state: EngineState = "running"


def _choice(most: int = 4) -> tuple[EngineSelector[Engine], list[Engine]]:
    engines = [Engine(index) for index in range(3)]
    return EngineSelector(engines, lambda engine, model, urgent: most + urgent), engines


def _chosen(choice: EngineSelector[Engine], holders: set[int], session=None) -> int | None:  # type: ignore[no-untyped-def]
    engine = choice.choose(_TINY, holders, session)
    return engine.index if engine else None


def test_the_least_busy_that_holds_the_model_is_chosen() -> None:
    choice, _ = _choice()
    choice.add(0, _TINY, 1)
    assert _chosen(choice, _ALL) == 1
    choice.add(1, _TINY, 2)
    assert _chosen(choice, {0, 1}) == 0
    assert _chosen(choice, _ALL) == 2
    assert _chosen(choice, set()) is None


def test_what_needs_no_place_goes_to_the_least_busy_however_full_it_is() -> None:
    choice, engines = _choice(most=1)
    for index, sequences in enumerate((3, 2, 4)):
        choice.add(index, _TINY, sequences)
    assert _chosen(choice, _ALL) is None
    least = choice.least_busy(_ALL)
    assert least is not None and least.index == 1
    engines[1].state = "restarting"
    least = choice.least_busy(_ALL)
    assert least is not None and least.index == 0
    assert choice.least_busy({1}) is None


def test_one_that_is_full_or_does_not_run_is_left_out() -> None:
    choice, engines = _choice(most=2)
    choice.add(0, _TINY, 2)
    engines[1].state = "restarting"
    assert _chosen(choice, {0, 1}) is None
    assert _chosen(choice, _ALL) == 2
    engines[2].state = "failed"
    assert _chosen(choice, _ALL) is None
    choice.remove(0, _TINY)
    assert _chosen(choice, _ALL) == 0


def test_a_session_stays_where_it_was_while_there_is_room() -> None:
    choice, engines = _choice(most=3)
    choice.add(2, _TINY, 1, _ANN)
    choice.add(2, _TINY, 1)
    assert _chosen(choice, _ALL, _ANN) == 2
    assert _chosen(choice, _ALL, (ClientName("bob"), "talk")) == 0
    choice.add(2, _TINY, 1)
    assert _chosen(choice, _ALL, _ANN) == 0  # full
    choice.remove(2, _TINY)
    assert _chosen(choice, _ALL, _ANN) == 2
    engines[2].state = "restarting"
    choice.add(0, _TINY, 1, _ANN)
    engines[2].state = "running"
    assert _chosen(choice, _ALL, _ANN) == 0  # it moved


def test_each_model_has_its_own_places_and_the_whole_load_counts() -> None:
    choice, _ = _choice(most=2)
    choice.add(0, _TINY, 2)
    choice.add(1, _DEMO, 1)
    assert choice.choose(_TINY, {0}) is None
    other = choice.choose(_DEMO, {0})
    assert other is not None and other.index == 0
    least_busy = choice.choose(_DEMO, {0, 1})
    assert least_busy is not None and least_busy.index == 1
