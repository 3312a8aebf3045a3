"""Several models in one engine take turns."""

from pathlib import Path

from shared.ids import ModelId
from tests.models import make_tiny_model
from tests.worker.engine.running_engine import outputs_of, running_engine
from worker.link.facts import Fact, ModelLoaded, PrefillAdvanced

_OTHER = ModelId("other")


def test_a_long_prompt_of_one_model_does_not_keep_a_short_one_of_another_waiting(
    tmp_path: Path,
) -> None:
    model = make_tiny_model(tmp_path / "roomy", context_tokens=16 * 1024)
    with running_engine(model) as engine:
        assert isinstance(engine.load(model, _OTHER), ModelLoaded)
        long = engine.submit(None, token_ids=[1] * 12_000, max_tokens=1)

        def begun(facts: list[Fact]) -> bool | None:
            return any(isinstance(fact, PrefillAdvanced) for fact in facts) or None

        engine.wait(begun)
        short = engine.submit(None, token_ids=[1] * 400, max_tokens=1, model=_OTHER)
        assert engine.answer(short).finish_reason == "length"
        assert not outputs_of(engine.facts(), long)
        engine.cancel(long)
        assert engine.answer(long).finish_reason == "cancelled"
