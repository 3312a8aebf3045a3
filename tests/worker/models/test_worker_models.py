"""The models that a worker knows, and what is said of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ids import ModelId
from shared.messages.model_status import LoadPhase, ModelPerformance, ModelState
from shared.settings import ClusterSettings
from shared.settings.models import ModelSettings
from worker.link.orders import LoadModel
from worker.models.worker_models import ModelCatalogue, WorkerModel

_WAY = st.lists(st.floats(0, 1), min_size=1, max_size=10).map(sorted)


def _model(**fields: Any) -> WorkerModel:
    return WorkerModel(ModelId("tiny"), ModelSettings(path="/models/tiny"), **fields)


def _seen(model: WorkerModel, phase: LoadPhase, way: list[float]) -> list[float]:
    """What waiting clients see while a phase advances."""
    model.phase = phase
    seen = []
    for model.progress in way:
        assert model.overall_progress is not None
        seen.append(model.overall_progress)
    return seen


# On the way to the first token.


@given(_WAY, _WAY)
def test_progress_never_goes_back_while_a_model_is_fetched_and_then_loaded(
    fetching: list[float], loading: list[float]
) -> None:
    model = _model(fetched=True)
    seen = _seen(model, "downloading", [0.0, *fetching])
    seen += _seen(model, "loading", [*loading, 1.0])
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 1)


@given(_WAY)
def test_progress_of_a_model_that_is_here_is_that_of_loading_it(loading: list[float]) -> None:
    assert _seen(_model(), "loading", loading) == loading


@pytest.mark.parametrize("fetched", [True, False])
def test_progress_does_not_go_back_when_the_weights_are_there_and_a_token_is_tried(
    fetched: bool,
) -> None:
    model = _model(fetched=fetched)
    (loaded,) = _seen(model, "loading", [1.0])
    (warming,) = _seen(model, "warming", [0.0])
    assert warming >= loaded


def test_fetching_takes_most_of_the_way() -> None:
    model = _model(fetched=True)
    assert _seen(model, "downloading", [0.5, 1.0]) == pytest.approx([0.45, 0.9])
    assert _seen(model, "loading", [0.0, 0.5]) == pytest.approx([0.9, 0.95])


@pytest.mark.parametrize("fetched", [True, False])
def test_a_model_that_is_not_on_its_way_has_no_progress(fetched: bool) -> None:
    assert _model(fetched=fetched).overall_progress is None


# What is told of a model.


@pytest.mark.parametrize(
    ("state", "active", "queued", "idle_s"),
    [
        ("warm", 0, 0, 30.5),
        ("warm", 1, 0, None),
        ("warm", 0, 1, None),
        ("loading", 0, 0, None),
        ("available", 0, 0, None),
        ("failed", 0, 0, None),
    ],
)
def test_only_a_warm_model_that_nobody_uses_is_idle(
    state: ModelState, active: int, queued: int, idle_s: float | None
) -> None:
    model = _model(state=state, used_at=100.0)
    status = model.status(active=active, queued=queued, now=130.52, speed=ModelPerformance())
    assert (status.state, status.idle_s) == (state, idle_s)
    assert (status.active_requests, status.queued_requests) == (active, queued)


def test_a_status_has_what_is_known_of_the_model_and_of_its_source() -> None:
    source = ModelSettings(path="/models/tiny", priority="high", pinned=True)
    model = WorkerModel(ModelId("tiny"), source, "loading", "downloading", 0.123456, "slow", 789)
    model.max_context_tokens = 512
    speed = ModelPerformance(step_ms=12.5)
    status = model.status(active=0, queued=0, now=0.0, speed=speed)
    assert (status.id, status.priority, status.pinned) == ("tiny", "high", True)
    assert (status.phase, status.progress, status.error) == ("downloading", 0.123, "slow")
    assert (status.size_bytes, status.max_context_tokens) == (789, 512)
    assert status.speed == speed


def test_engines_are_told_the_folder_and_what_the_settings_say() -> None:
    source = ModelSettings(path="owner/name", max_context_tokens=99, trust_remote_code=True)
    model = WorkerModel(ModelId("alias"), source, folder=Path("/cache/name"))
    order = model.load_order()
    assert order.verdicts_file is not None
    assert replace(order, verdicts_file=None) == LoadModel(
        ModelId("alias"), "/cache/name", 99, True
    )


# Which models there are.


def _catalogue(**settings: Any) -> dict[str, str]:
    """The path of each model, by its id."""
    catalogue = ModelCatalogue(ClusterSettings.model_validate(settings))
    assert all(catalogue[model.id] is catalogue.get(model.id) is model for model in catalogue)
    return {model.id: model.source.path for model in catalogue}


def test_by_default_there_is_the_demo_model() -> None:
    assert _catalogue() == {"demo": "demo"}


def test_skills_name_aliases_and_hub_ids_and_aliases_count_without_a_skill() -> None:
    models = {"coder": {"path": "/models/coder"}, "spare": {"path": "owner/spare"}}
    assert _catalogue(skills={"chat": ["coder", "owner/name"]}, models=models) == {
        "coder": "/models/coder",
        "owner/name": "owner/name",
        "spare": "owner/spare",
    }


def test_a_worker_may_be_limited_to_some_models() -> None:
    models = {"coder": {"path": "/models/coder"}, "spare": {"path": "owner/spare"}}
    limited = {"models": ["spare", "owner/name", "spare"]}
    known = _catalogue(skills={"chat": ["coder"]}, models=models, worker=limited)
    assert known == {"spare": "owner/spare", "owner/name": "owner/name"}


def test_what_is_to_be_warmed_is_there_and_comes_first() -> None:
    warmed = {"pre_warming": {"models": [{"model": "late", "priority": "low"}, {"model": "b"}]}}
    assert list(_catalogue(skills={"chat": ["a", "b"]}, worker=warmed)) == ["b", "late", "a"]


def test_a_model_that_nobody_named_is_not_there() -> None:
    catalogue = ModelCatalogue(ClusterSettings())
    assert catalogue.get(ModelId("none")) is None
    with pytest.raises(KeyError):
        catalogue[ModelId("none")]
