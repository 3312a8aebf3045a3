"""Processes that are killed while they write blocks: the next one starts, and never finds another
text's content under a block's name."""

import multiprocessing
import random
from pathlib import Path

from tests.worker.kv_memory.kept_files import KeptFiles, bytes_on_disk
from worker.kv_memory.block import Block

_CAP_BYTES = 12 * 2**20
_BLOCK_BYTES = 200_000
_KILLS = 20


def _blocks(kept: KeptFiles, number: int) -> Block:
    """Some at the root, some one behind the other."""
    parent = kept.block(number - 1) if number % 3 else None
    return kept.block(number, parent)


def _write_for_ever(path: Path, began: object) -> None:
    kept = KeptFiles(path, cap_bytes=_CAP_BYTES)
    number = 0
    while True:
        kept.write(_blocks(kept, number % 200), _BLOCK_BYTES)
        number += 1
        if number == 3:
            began.set()  # type: ignore[attr-defined]


def test_writers_that_are_killed_leave_only_whole_blocks_or_what_is_seen_to_be_broken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kv"
    context = multiprocessing.get_context("fork")
    chance = random.Random(1)
    whole = 0
    for _ in range(_KILLS):
        began = context.Event()
        process = context.Process(target=_write_for_ever, args=(path, began))
        process.start()
        assert began.wait(60)
        process.join(timeout=chance.uniform(0.0, 0.15))
        assert bytes_on_disk(path) <= _CAP_BYTES
        process.kill()
        process.join()
        kept = KeptFiles(path, cap_bytes=_CAP_BYTES)
        assert kept.tier.problem is None
        assert bytes_on_disk(path) <= _CAP_BYTES
        for block in list(kept.tree):
            whole += kept.has(block, _BLOCK_BYTES)
        assert kept.tier.statistics.broken == 0, "renamed only when whole, and no machine crashed"
        kept.close()
    assert whole > _KILLS
