"""Which idle models go for others, and when: by priority, by last use, and no more than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ModelId
from shared.messages.base import PRIORITIES, Priority
from shared.messages.model_status import ModelState
from shared.settings.models import ModelSettings
from worker.models.eviction import expired, idle_models, victims
from worker.models.worker_models import WorkerModel

_PRIORITIES = st.sampled_from(PRIORITIES)


def _model(
    name: str,
    priority: Priority = "medium",
    *,
    size: int = 1,
    used_at: float = 0,
    state: ModelState = "warm",
    pinned: bool = False,
    ttl_s: int | None = None,
) -> WorkerModel:
    source = ModelSettings(path=f"/models/{name}", priority=priority, pinned=pinned, ttl_s=ttl_s)
    return WorkerModel(ModelId(name), source, state, size_bytes=size, used_at=used_at)


def _names(models: list[WorkerModel]) -> list[str]:
    return [model.id for model in models]


@st.composite
def _models(draw: st.DrawFn) -> list[WorkerModel]:
    kinds = st.tuples(_PRIORITIES, st.integers(0, 4), st.integers(0, 5))
    return [
        _model(str(number), priority, size=size, used_at=used_at)
        for number, (priority, size, used_at) in enumerate(draw(st.lists(kinds, max_size=7)))
    ]


# Who is idle.


def test_the_lowest_priority_is_first_then_the_one_not_used_for_longest() -> None:
    models = [
        _model("high", "high", used_at=0),
        _model("late", "low", used_at=9),
        _model("medium", used_at=1),
        _model("never used", "low", used_at=-float("inf")),
        _model("early", "low", used_at=5),
    ]
    order = ["never used", "early", "late", "medium", "high"]
    assert _names(idle_models(models, [])) == order


def test_pinned_ones_those_in_use_and_those_that_are_not_warm_are_never_among_them() -> None:
    states: list[ModelState] = ["available", "loading", "failed"]
    models = [
        _model("pinned", "low", pinned=True),
        _model("in use", "low"),
        *(_model(state, "low", state=state) for state in states),
        _model("idle", "high"),
    ]
    assert _names(idle_models(models, ["in use"])) == ["idle"]


@given(_models())
def test_each_idle_model_stands_before_those_that_matter_more(models: list[WorkerModel]) -> None:
    order = idle_models(models, [])
    assert sorted(_names(order)) == sorted(_names(models))
    places = [(-PRIORITIES.index(model.source.priority), model.used_at) for model in order]
    assert places == sorted(places)


# Who goes for another one.


@given(_models(), st.integers(1, 16), _PRIORITIES)
def test_those_who_go_suffice_none_of_them_is_needless_and_none_ranks_higher(
    models: list[WorkerModel], missing: int, newcomer: Priority
) -> None:
    idle = idle_models(models, [])
    rank = PRIORITIES.index(newcomer)
    allowed = [model for model in idle if PRIORITIES.index(model.source.priority) >= rank]
    going = victims(idle, missing, newcomer)
    freed = sum(model.size_bytes for model in going)
    assert all(model in allowed for model in going)
    assert all(freed - model.size_bytes < missing for model in going)
    suffice = sum(model.size_bytes for model in allowed) >= missing
    assert bool(going) == (freed >= missing) == suffice


@given(_models(), st.integers(1, 16))
def test_nobody_goes_while_one_who_should_go_sooner_could_go_instead(
    models: list[WorkerModel], missing: int
) -> None:
    idle = idle_models(models, [])
    going = victims(idle, missing, "high")
    freed = sum(model.size_bytes for model in going)
    for place, sooner in enumerate(idle):
        for later in idle[place + 1 :]:
            if later in going and sooner not in going:
                assert freed - later.size_bytes + sooner.size_bytes < missing


def test_a_later_one_that_is_large_enough_goes_alone() -> None:
    idle = [_model("small", "low", size=1), _model("large", size=10)]
    assert _names(victims(idle, 1, "high")) == ["small"]
    assert _names(victims(idle, 2, "high")) == ["large"]
    assert _names(victims(idle, 10, "high")) == ["large"]
    assert _names(victims(idle, 11, "high")) == ["small", "large"]
    assert victims(idle, 12, "high") == []


@pytest.mark.parametrize(
    ("newcomer", "going"), [("low", []), ("medium", []), ("high", ["low", "high"])]
)
def test_nobody_goes_for_one_of_a_lower_priority(newcomer: Priority, going: list[str]) -> None:
    idle = [_model("low", "low", size=5), _model("high", "high", size=5)]
    assert _names(victims(idle, 6, newcomer)) == going


def test_one_whose_size_nobody_knows_goes_for_nobody() -> None:
    idle = [_model("unknown", "low", size=0), _model("known", size=4)]
    assert _names(victims(idle, 4, "high")) == ["known"]
    assert victims(idle[:1], 3, "high") == []


# Who was there for too long.


@pytest.mark.parametrize(("ttl_s", "gone"), [(60, True), (61, False), (None, False)])
def test_a_model_goes_when_it_was_not_used_for_its_time_to_live(
    ttl_s: int | None, gone: bool
) -> None:
    idle = [_model("old", used_at=100, ttl_s=ttl_s), _model("new", used_at=101, ttl_s=60)]
    assert _names(expired(idle, 160)) == (["old"] if gone else [])
