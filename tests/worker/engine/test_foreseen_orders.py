"""The engine's loop is told of prompts before they come."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.ids import ModelId
from tests.worker.engine.running_engine import TINY, RunningEngine, running_engine
from tests.worker.engine.watched_network import random_ids
from worker.engine.kv_block_store import PrefixCacheConfig
from worker.link.facts import EngineMeasured, Fact, PrefixCacheMeasurements, SequenceRejected
from worker.link.orders import (
    CancelPrefixPrefetch,
    LimitKVCaches,
    PrefetchPrefix,
    SubmitSequence,
    UnloadModel,
)

_PROMPT = random_ids(180, 5)
_BLOCK = 16
_BLOCKS = len(_PROMPT) // _BLOCK


@pytest.fixture
def settings(tmp_path: Path) -> PrefixCacheConfig:
    return PrefixCacheConfig(block_tokens=_BLOCK, path=tmp_path / "kv", disk_bytes=2**30)


@contextmanager
def knowing(tiny_model: Path, settings: PrefixCacheConfig) -> Iterator[RunningEngine]:
    """An engine that has the prompt on disk only."""
    with running_engine(tiny_model, kv_memory=settings) as engine:
        engine.answer(engine.submit(None, token_ids=_PROMPT))
    with running_engine(tiny_model, kv_memory=settings) as engine:
        _until(engine, lambda kept: kept.disk_bytes > 0)
        yield engine


def _until(engine: RunningEngine, condition, since: int = 0) -> PrefixCacheMeasurements:  # type: ignore[no-untyped-def]
    def find(facts: list[Fact]) -> PrefixCacheMeasurements | None:
        kept = (fact.kv_memory for fact in facts[since:] if isinstance(fact, EngineMeasured))
        return next((each for each in kept if condition(each)), None)

    return engine.wait(find)


def _now(engine: RunningEngine) -> PrefixCacheMeasurements:
    """What it measures once all orders so far are carried out."""
    seen = len(engine.facts())
    engine.generate("another one", max_tokens=1)
    engine.give(LimitKVCaches(None))
    return _until(engine, lambda _: True, seen)


def _foresee(engine: RunningEngine) -> SubmitSequence:
    order = engine.order(None, token_ids=_PROMPT)
    engine.give(PrefetchPrefix(order))
    _until(engine, lambda kept: kept.promoted_blocks >= _BLOCKS and kept.memory_bytes > 0)
    return order


@pytest.mark.parametrize("end", ["forgotten", "unloaded", "stopped"])
def test_nothing_is_held_once_it_will_not_come(
    tiny_model: Path, settings: PrefixCacheConfig, end: str
) -> None:
    with knowing(tiny_model, settings) as engine:
        order = _foresee(engine)
        if end == "forgotten":
            engine.give(CancelPrefixPrefetch(order.sequence))
            _now(engine)
            assert all(block.prefetches == 0 for block in engine.blocks)
        elif end == "unloaded":
            engine.give(UnloadModel(TINY))
            engine.load(tiny_model)
            _now(engine)
            assert all(block.prefetches == 0 for block in engine.blocks)
    assert len(engine.blocks) >= _BLOCKS
    assert all(block.users == block.prefetches == 0 for block in engine.blocks)


def test_what_is_wrong_with_a_prompt_is_told_when_it_comes_and_not_before(
    tiny_model: Path,
) -> None:
    with running_engine(tiny_model) as engine:
        wrong = engine.order(None, token_ids=[10**6])
        nowhere = replace(engine.order(), model=ModelId("nowhere"))
        for order in (wrong, nowhere):
            engine.give(PrefetchPrefix(order))
        engine.give(CancelPrefixPrefetch(nowhere.sequence))
        assert engine.generate("Hello").token_ids
        assert not any(isinstance(fact, SequenceRejected) for fact in engine.facts())
        engine.give(wrong)
        assert engine.refusal(wrong.sequence).param == "prompt"
