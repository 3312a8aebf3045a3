"""What is kept of prompts that will come is in memory when they do, and in nobody's way before."""

import queue
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.engine.driven_batch import ids_alone
from tests.worker.engine.kept_texts import KeptTexts
from tests.worker.engine.other_models import KINDS
from tests.worker.engine.watched_network import prepared, random_ids
from worker.engine.model import LoadedModel
from worker.engine.prefetch import _MAX_READS
from worker.engine.preparation import PreparationThread, Prepared, PreparedPrefetch
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.block import token_array
from worker.link.activity import EngineActivityRecord
from worker.link.orders import CancelPrefixPrefetch, PrefetchPrefix

BLOCK = 16
_LIMIT_S = 20
FIRST, SECOND = random_ids(200, 1), random_ids(150, 2)


@pytest.fixture
def model(models: dict[str, LoadedModel]) -> LoadedModel:
    return models["attention"]


def on_disk(model: LoadedModel, folder: Path, *texts: list[int], **options: int) -> KeptTexts:
    """Texts of which nothing is in memory."""
    kept = KeptTexts(model, block_tokens=BLOCK, folder=folder, **options)
    for number, ids in enumerate(texts):
        kept.answers(prepared(100 + number, ids), compare=False)
    kept.forget_memory()
    return kept


def held_by(kept: KeptTexts) -> int:
    """By whoever uses blocks or wishes for them."""
    return sum(block.users + block.prefetches for block in kept.memory.tree)


def found_of(kept: KeptTexts, ids: list[int], *, in_memory: bool = False) -> int:
    """How many of the first tokens of a prompt are kept."""
    cache = kept.batch.batch.prefix_cache
    assert cache is not None
    return cache.find(token_array(ids[:-1]), in_memory=in_memory).tokens


def in_memory(kept: KeptTexts, ids: list[int]) -> int:
    return found_of(kept, ids, in_memory=True)


def reads(kept: KeptTexts) -> int:
    assert kept.memory.files is not None
    return kept.memory.files.statistics.read


@pytest.mark.parametrize("kind", ["attention", *KINDS])
def test_who_was_foreseen_waits_for_no_read_and_gets_what_a_cold_run_gets(
    models: dict[str, LoadedModel], kind: str, tmp_path: Path
) -> None:
    model = models[kind]
    kept = on_disk(model, tmp_path / "kv", FIRST)
    coming = prepared(1, FIRST, max_tokens=12)
    found = found_of(kept, FIRST)
    assert found > 0 == in_memory(kept, FIRST)
    kept.prefetch(coming)
    assert in_memory(kept, FIRST) == found
    before = reads(kept)
    assert before == kept.memory.measured().promoted_blocks > 0
    kept.batch.add(coming)
    kept.prefetched.forget(1)
    assert kept.batch.busy, "it waits for files"
    kept.batch.finish()
    assert reads(kept) == before
    assert kept.batch.ids(1) == ids_alone(model, coming)
    assert kept.batch.restored[1] == found
    kept.settle()
    assert held_by(kept) == 0
    kept.close()


def test_who_is_forgotten_holds_nothing(model: LoadedModel, tmp_path: Path) -> None:
    kept = on_disk(model, tmp_path / "kv", FIRST, SECOND)
    kept.prefetch(prepared(1, FIRST), prepared(2, SECOND))
    assert held_by(kept) > 0
    kept.prefetched.forget(1)
    kept.prefetched.forget(1)
    kept.prefetched.forget_all()
    assert held_by(kept) == 0
    kept.close()


def test_who_is_forgotten_while_it_is_read_is_read_no_further(
    model: LoadedModel, tmp_path: Path
) -> None:
    kept = on_disk(model, tmp_path / "kv", FIRST)
    kept.prefetched.add(prepared(1, FIRST))
    kept.prefetched.advance()
    kept.prefetched.forget(1)
    kept.read_on()
    assert reads(kept) == _MAX_READS
    assert held_by(kept) == 0
    kept.close()


def test_a_prompt_that_has_come_waits_for_few_files_of_others(
    model: LoadedModel, tmp_path: Path
) -> None:
    kept = on_disk(model, tmp_path / "kv", FIRST, SECOND)
    kept.prefetched.add(prepared(1, FIRST))
    kept.prefetched.advance()
    coming = prepared(2, SECOND)
    kept.batch.add(coming)
    own = len(SECOND) // BLOCK
    while not kept.batch.busy:
        kept.take_one()
        kept.prefetched.advance()
    assert reads(kept) <= 2 * _MAX_READS + own
    kept.batch.finish()
    assert kept.batch.ids(2) == ids_alone(model, coming)
    kept.close()


def test_they_get_half_of_the_memory_and_the_beginning_of_the_first_comes_first(
    model: LoadedModel, tmp_path: Path
) -> None:
    kept = on_disk(model, tmp_path / "kv", FIRST, SECOND)
    (block_bytes,) = {
        block.part("kv").file_bytes for block in kept.memory.tree if block.count == BLOCK
    }
    kept.memory.limit(2 * 14 * block_bytes)
    kept.prefetch(prepared(1, FIRST), prepared(2, SECOND))
    assert reads(kept) == 14
    assert kept.memory.memory.held_bytes <= 14 * block_bytes
    assert [in_memory(kept, ids) for ids in (FIRST, SECOND)] == [12 * BLOCK, 2 * BLOCK]
    kept.close()


def test_what_nobody_waits_for_goes_first_and_rows_come_before_all(
    model: LoadedModel, tmp_path: Path
) -> None:
    kept = on_disk(model, tmp_path / "kv", SECOND)
    kept.prefetch(prepared(1, SECOND))
    wished = kept.memory.memory.held_bytes
    kept.answers(prepared(2, FIRST), compare=False)
    assert kept.memory.memory.held_bytes > wished
    kept.memory.limit(wished)
    assert kept.memory.memory.held_bytes == wished
    assert all(block.prefetches for block in kept.memory.tree if block.in_memory("kv"))
    kept.memory.limit(wished // 2)
    assert kept.memory.memory.held_bytes <= wished // 2
    kept.read_on()
    assert held_by(kept) == 0
    kept.answers(prepared(3, SECOND))
    kept.close()


def test_without_room_nothing_is_read(model: LoadedModel, tmp_path: Path) -> None:
    kept = on_disk(model, tmp_path / "kv", FIRST)
    kept.memory.limit(0)
    kept.prefetch(prepared(1, FIRST))
    assert (reads(kept), held_by(kept)) == (0, 0)
    kept.close()


# Its tokens.


def test_the_prompt_of_an_order_is_known_once_it_was_foreseen(model: LoadedModel) -> None:
    kept = KeptTexts(model, block_tokens=BLOCK)
    coming = prepared(1, FIRST)
    assert kept.prefetched.find(coming.order) is None
    kept.prefetched.add(coming)
    assert kept.prefetched.find(coming.order) is coming
    assert kept.prefetched.find(replace(coming.order, max_tokens=3)) is None
    kept.prefetched.forget(1)
    assert kept.prefetched.find(coming.order) is None


def test_what_was_foreseen_is_not_prepared_again_and_errors_are_kept_for_later() -> None:
    known: dict[int, PreparedSequence] = {1: prepared(1, FIRST)}
    out: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
    activity = EngineActivityRecord.private()
    preparation = PreparationThread(
        lambda _: None, lambda order: known.get(order.sequence), out.put, activity
    )
    preparation.start()
    unknown = prepared(2, FIRST).order
    for order in (
        PrefetchPrefix(known[1].order),
        PrefetchPrefix(unknown),
        CancelPrefixPrefetch(2),
        known[1].order,
    ):
        preparation.enqueue(order)
    results = [out.get(timeout=_LIMIT_S) for _ in range(3)]
    results.remove(CancelPrefixPrefetch(2))  # which overtakes what waits
    assert results == [PreparedPrefetch(known[1]), known[1]]
