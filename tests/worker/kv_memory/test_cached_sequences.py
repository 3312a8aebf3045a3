"""How much is kept of whole texts, by value; what is pinned stays."""

from dataclasses import dataclass

from worker.kv_memory.block import Block, Kind, root_key, token_array
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.cached_sequences import (
    CachedSequences,
    SequenceCacheUsage,
    exclusive_blocks,
    sequence_statistics,
)
from worker.kv_memory.memory_tier import MemoryTier

SIZE = 4


@dataclass
class _Kept:
    nbytes: int = 10


class Texts:
    """Some texts in memory, of layers that grow."""

    def __init__(self) -> None:
        self.tree = BlockTree(SIZE)
        self.root = self.tree.root(root_key("model"))
        self.memory = MemoryTier(lambda block, _: self.tree.prune(block))
        self.followed = CachedSequences(self.tree)

    def file(self, *text: int, kinds: tuple[Kind, ...] = ("kv",)) -> list[Block]:
        blocks, at = [], self.root
        for start in range(0, len(text), SIZE):
            at = self.tree.get(at, token_array(text[start : start + SIZE]))
            for kind in kinds:
                if not at.in_memory(kind):
                    self.memory.put(at, kind, _Kept())
            blocks.append(at)
        return blocks


def test_a_text_is_kept_as_far_as_all_before_is_there() -> None:
    texts = Texts()
    blocks = texts.file(*range(10))
    assert sequence_statistics(blocks[-1]) == SequenceCacheUsage(10, 10, 30, 0, 30)
    blocks[1].part("kv").file_bytes = 7
    texts.memory.drop(blocks[1], "kv")
    assert sequence_statistics(blocks[-1]) == SequenceCacheUsage(10, 4, 20, 7, 27)
    blocks[1].part("kv").file_bytes = 0
    assert sequence_statistics(blocks[-1]) == SequenceCacheUsage(4, 4, 20, 0, 20)


def test_of_states_the_last_one_counts() -> None:
    texts = Texts()
    blocks = texts.file(*range(10), kinds=("kv", "state"))
    texts.memory.drop(blocks[2], "state")
    assert sequence_statistics(blocks[-1]).tokens == 8
    blocks[2].part("state").file_bytes = 5
    assert (
        sequence_statistics(blocks[-1]).tokens,
        sequence_statistics(blocks[-1]).memory_tokens,
    ) == (10, 8)


def test_own_is_what_no_other_text_has() -> None:
    texts = Texts()
    one = texts.file(0, 1, 2, 3, 4, 5, 6, 7, 8)
    other = texts.file(0, 1, 2, 3, 9, 9)
    assert exclusive_blocks(one[-1]) == one[:0:-1]
    assert sequence_statistics(other[-1]).own_bytes == 10
    assert exclusive_blocks(one[0]) == [], "both go on with it"


def test_only_what_changed_is_told() -> None:
    texts = Texts()
    one, other = texts.file(1, 2, 3), texts.file(5, 6)
    for blocks in (one, other):
        texts.followed.track(blocks[-1].key)
    assert dict(texts.followed.changed(10)) == {
        one[-1].key: SequenceCacheUsage(3, 3, 10, 0, 10),
        other[-1].key: SequenceCacheUsage(2, 2, 10, 0, 10),
    }
    assert texts.followed.changed(10) == []
    texts.memory.shrink(10)
    assert texts.followed.changed(10) == [(one[-1].key, SequenceCacheUsage())]
    texts.followed.untrack(other[-1].key)
    texts.memory.shrink(0)
    assert texts.followed.changed(10) == []


def test_what_is_tracked_again_is_reported_again() -> None:
    """Another session may have the same text."""
    texts = Texts()
    end = texts.file(*range(8))[-1]
    for _ in range(2):
        texts.followed.track(end.key)
        assert texts.followed.changed(1) == [(end.key, sequence_statistics(end))]
        assert texts.followed.changed(1) == []


def test_many_are_looked_at_in_turn() -> None:
    texts = Texts()
    for number in range(10):
        texts.followed.track(texts.file(number)[-1].key)
    told = [len(texts.followed.changed(4)) for _ in range(3)]
    assert told == [4, 4, 2]


def test_pinned_texts_go_last() -> None:
    texts = Texts()
    pinned, other = texts.file(1, 2, 3, 4, 5), texts.file(7, 8)
    texts.followed.track(pinned[-1].key, pinned=True)
    texts.memory.shrink(20)
    assert [block.in_memory("kv") for block in (*pinned, *other)] == [True, True, False]
    texts.followed.track(pinned[-1].key, pinned=False)
    assert all(block.pins == 0 for block in pinned)
    texts.followed.track(pinned[-1].key, pinned=True)
    texts.memory.shrink(0)
    assert texts.memory.held_bytes == 0, "running requests go before what is pinned"


def test_a_text_may_be_pinned_before_it_is_known() -> None:
    texts = Texts()
    known = Texts().file(1, 2, 3)[-1].key
    texts.followed.track(known, pinned=True)
    assert texts.followed.changed(10) == [(known, SequenceCacheUsage())]
    (block,) = texts.file(1, 2, 3)
    texts.followed.changed(10)
    assert block.pins == 1
    texts.followed.untrack(known)
    assert block.pins == 0
