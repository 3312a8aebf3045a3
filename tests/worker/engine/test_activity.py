"""What an engine writes down of what it is at: read when it tells of it, on its own thread."""

from pathlib import Path

from tests.worker.engine.running_engine import TINY, RunningEngine, running_engine
from worker.link.activity import EngineActivities, EngineActivity
from worker.link.facts import Fact, ModelLoaded, PrefillAdvanced, StepCompleted
from worker.link.orders import LoadModel


def _at(engine: RunningEngine, kind: type[Fact]) -> list[EngineActivities]:
    """What is written when the next fact of a kind is told."""
    read: list[EngineActivities] = []
    record = engine._engine._activity
    engine.on_first(lambda fact: isinstance(fact, kind), lambda: read.append(record.read()))
    return read


def test_steps_prefills_and_loads_are_written_down_with_model_and_sequences(
    tiny_model: Path,
) -> None:
    with running_engine(tiny_model) as engine:
        prefilled, stepped = _at(engine, PrefillAdvanced), _at(engine, StepCompleted)
        sequence = engine.submit(None, token_ids=[1] * 400)
        engine.answer(sequence)
        assert [activity.now for activity in prefilled] == [
            EngineActivity("prefill", TINY, (sequence,))
        ]
        assert [activity.now and activity.now.model for activity in stepped] == [TINY]
        assert [activity.now and activity.now.sequences for activity in stepped] == [(sequence,)]

        loaded = _at(engine, ModelLoaded)
        engine.give(LoadModel(TINY, str(tiny_model)))  # it holds it already: nothing is touched
        engine.wait(lambda _: loaded or None)
        assert loaded == [EngineActivities()]


def test_rows_that_step_together_are_all_written_down(tiny_model: Path) -> None:
    with running_engine(tiny_model) as engine:
        sequences = [engine.submit(ignore_eos=True, max_tokens=100) for _ in range(3)]
        record = engine._engine._activity

        def is_together(fact: Fact) -> bool:
            now = record.read().now
            return now is not None and set(now.sequences) == set(sequences)

        together: list[bool] = []
        engine.on_first(is_together, lambda: together.append(True))
        engine.wait(lambda _: together or None)
        for sequence in sequences:
            engine.answer(sequence)
