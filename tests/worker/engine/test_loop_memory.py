"""The engine's loop with too little memory for KV caches."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from shared.messages.structured import Structure
from tests.models import CONTEXT_TOKENS
from tests.worker.engine.running_engine import TINY, RunningEngine, running_engine
from tests.worker.engine.samplings import sampling
from worker.engine.row_cache import BLOCK_TOKENS
from worker.link.facts import Fact, ModelFailed, ModelLoaded, SequencePreempted
from worker.link.orders import UnloadModel

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Of the tiny model: layers, keys and values, heads, size, float32."""
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
OTHER = ModelId("other")


@pytest.fixture(scope="module")
def roomy(tiny_model: Path) -> Iterator[RunningEngine]:
    with running_engine(tiny_model) as running:
        yield running


@pytest.fixture(scope="module", params=[False, True], ids=["reads first", "evaluates ahead"])
def narrow(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[RunningEngine]:
    """With room for a context of 1024 and hardly more."""
    with running_engine(
        tiny_model, kv_budget_bytes=6 * BLOCK_BYTES, evaluates_ahead=request.param
    ) as running:
        yield running


def _preempted(facts: list[Fact], since: int) -> list[int]:
    return [fact.sequence for fact in facts[since:] if isinstance(fact, SequencePreempted)]


def test_models_share_the_memory_and_the_younger_gives_way(
    roomy: RunningEngine, narrow: RunningEngine, tiny_model: Path
) -> None:
    assert isinstance(narrow.load(tiny_model, OTHER), ModelLoaded)
    work: list[dict[str, Any]] = [
        {"text": None, "token_ids": [i + 1] * 250, "max_tokens": 300, "sampling": sampling(seed=i)}
        for i in range(4)
    ]
    seen = len(narrow.facts())
    numbers = [
        narrow.submit(model=model, **fields)
        for model, fields in zip((TINY, OTHER, TINY, OTHER), work, strict=True)
    ]
    answers = [narrow.answer(number).token_ids for number in numbers]
    assert answers == [roomy.generate(**fields).token_ids for fields in work]
    gave_way = _preempted(narrow.facts(), seen)
    assert gave_way and numbers[0] not in gave_way
    narrow.give(UnloadModel(OTHER))


def test_a_bound_answer_that_gave_way_goes_on_as_if_it_had_not(
    roomy: RunningEngine, narrow: RunningEngine
) -> None:
    work: list[dict[str, Any]] = [
        {
            "text": None,
            "token_ids": [i + 1] * 250,
            "max_tokens": 300,
            "sampling": sampling(seed=i),
            "structure": Structure("regex", f"([a-z]{{3,{i + 5}}} [0-9]){{100}}", "regex"),
        }
        for i in range(4)
    ]
    seen = len(narrow.facts())
    numbers = [narrow.submit(**fields) for fields in work]
    answers = [narrow.answer(number) for number in numbers]
    assert [each.text for each in answers] == [roomy.generate(**fields).text for fields in work]
    assert _preempted(narrow.facts(), seen)
    assert all(re.match(r"[a-z]{3,8} [0-9]", answer.text) for answer in answers)


def test_no_context_is_longer_than_what_fits(tiny_model: Path) -> None:
    with running_engine(tiny_model, kv_budget_bytes=4 * BLOCK_BYTES) as engine:
        loaded = engine.load(tiny_model)
        assert isinstance(loaded, ModelLoaded)
        context = loaded.max_context_tokens
        assert BLOCK_TOKENS <= context < CONTEXT_TOKENS
        refused = engine.refusal(engine.submit(None, token_ids=[1] * context))
        assert refused.code == "context_length_exceeded"
        answer = engine.generate(None, token_ids=[1] * (context - 5), max_tokens=None)
        assert len(answer.token_ids) <= 5
        assert answer.finish_reason in ("length", "stop")


def test_a_model_of_which_hardly_a_token_fits_is_refused_with_the_reason(tiny_model: Path) -> None:
    engine = RunningEngine(prefill_chunk_tokens=64, kv_budget_bytes=BLOCK_BYTES)
    engine.start()
    try:
        failed = engine.load(tiny_model)
        assert isinstance(failed, ModelFailed)
        assert "MB holds less than 256 tokens of this model" in failed.message
    finally:
        engine.stop()
