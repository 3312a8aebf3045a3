"""Pages that no object needs any more go back to the system."""

import sys

import psutil
import pytest

from shared.freed_memory import return_freed_memory

_BLOCKS, _BLOCK_BYTES = 5_000, 20_000
_MAX_SHARE = 0.5


def _memory_bytes() -> int:
    return psutil.Process().memory_info().rss


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries do it by themselves")
def test_pages_between_blocks_that_are_in_use_are_returned() -> None:
    before = _memory_bytes()
    blocks = [b"x" * _BLOCK_BYTES + bytes([n % 256]) for n in range(_BLOCKS)]
    kept = blocks[::100]
    del blocks
    return_freed_memory()
    assert _memory_bytes() - before < _MAX_SHARE * _BLOCKS * _BLOCK_BYTES
    assert len(kept) == _BLOCKS // 100


def test_it_may_be_called_anywhere() -> None:
    return_freed_memory()
