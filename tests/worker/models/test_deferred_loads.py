"""The order in which a restarted engine loads its models again."""

from shared.ids import ModelId
from shared.settings.models import ModelSettings
from worker.models.loader import SuspectModelReloads
from worker.models.worker_models import WorkerModel

_ENGINE, _OTHER_ENGINE = 0, 1


def _models(*names: str) -> list[WorkerModel]:
    return [
        WorkerModel(ModelId(name), ModelSettings(path=name), placed={_ENGINE}) for name in names
    ]


def _names(models: list[WorkerModel]) -> list[str]:
    return [model.id for model in models]


def test_what_may_have_ended_the_engine_comes_when_all_others_are_there() -> None:
    held_back, here = SuspectModelReloads(), _models("good", "bad", "fine")
    assert _names(held_back.begin(_ENGINE, here, [ModelId("bad")])) == ["good", "fine"]
    assert held_back.release(_ENGINE, here) == []
    for model in (here[0], here[2]):
        model.engines.add(_OTHER_ENGINE)
        assert held_back.release(_ENGINE, here) == []
        model.engines.add(_ENGINE)
    assert _names(held_back.release(_ENGINE, here)) == ["bad"]
    assert held_back.release(_ENGINE, here) == []


def test_where_there_are_no_others_it_comes_at_once() -> None:
    held_back, here = SuspectModelReloads(), _models("bad")
    assert held_back.begin(_ENGINE, here, [ModelId("bad")]) == []
    assert _names(held_back.release(_ENGINE, here)) == ["bad"]


def test_when_the_engine_ends_again_it_begins_anew() -> None:
    held_back, here = SuspectModelReloads(), _models("bad")
    held_back.begin(_ENGINE, here, [ModelId("bad")])
    held_back.lost(_ENGINE)
    assert held_back.release(_ENGINE, here) == []
