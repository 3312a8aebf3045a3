"""Texts as a tree of blocks: what is found of a new text, beside a search through all texts."""

from collections.abc import Sequence
from itertools import takewhile
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from worker.kv_memory.block import Block, block_key, root_key, token_array
from worker.kv_memory.block_tree import BlockTree, LayerKinds, PrefixMatch, common_length

SIZE = 4
KV = LayerKinds(grows=True, has_state=False)
HYBRID = LayerKinds(grows=True, has_state=True)
RECURRENT = LayerKinds(grows=False, has_state=True)

# Of few tokens, so that many begin alike.
TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=8)


class _Kept:
    """The payload of a part; only that there is one counts."""

    nbytes = 1


class Kept:
    """A tree, and what was filed into it."""

    def __init__(self, layout: LayerKinds) -> None:
        self.layout = layout
        self.tree = BlockTree(SIZE)
        self.root = self.tree.root(root_key("model"))
        self.states: set[tuple[int, ...]] = set()

    def file(self, text: Sequence[int]) -> list[Block]:
        """All blocks of a text, the last one shorter, with the state at its end."""
        blocks, at = [], self.root
        for start in range(0, len(text), SIZE):
            at = self.tree.get(at, token_array(text[start : start + SIZE]))
            if self.layout.grows:
                at.part("kv").payload = _Kept()
            blocks.append(at)
        at.part("state").payload = _Kept()
        self.states.add(tuple(text))
        return blocks

    def match(self, text: Sequence[int]) -> PrefixMatch:
        return self.tree.match(self.root, token_array(text), self.layout, Block.in_memory)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


@given(TEXTS, st.lists(st.integers(0, 1), max_size=24))
def test_with_keys_and_values_of_all_layers_as_much_is_found_as_any_text_has_in_common(
    texts: list[list[int]], new: list[int]
) -> None:
    kept = Kept(KV)
    for text in texts:
        kept.file(text)
    match = kept.match(new)
    assert match.tokens == max(_common(text, new) for text in texts)
    found = [token for block in match.blocks for token in block.tokens or ()]
    assert found[: match.tokens] == new[: match.tokens]
    assert all(block.in_memory("kv") for block in match.blocks)


@given(TEXTS, st.lists(st.integers(0, 1), max_size=24), st.sampled_from([HYBRID, RECURRENT]))
def test_with_states_a_text_is_taken_up_where_a_state_is_kept_and_nowhere_else(
    texts: list[list[int]], new: list[int], layout: LayerKinds
) -> None:
    kept = Kept(layout)
    for text in texts:
        kept.file(text)
    match = kept.match(new)
    ends = [len(state) for state in kept.states if tuple(new[: len(state)]) == state]
    assert match.tokens == max(ends, default=0)
    if match.tokens:
        assert match.blocks[-1].in_memory("state")
        assert sum(block.count for block in match.blocks) == match.tokens


@given(TEXTS, st.lists(st.integers(0, 1), max_size=24), st.randoms(use_true_random=False))
def test_a_block_that_is_gone_is_the_end_of_what_is_found(
    texts: list[list[int]], new: list[int], chance: Random
) -> None:
    kept = Kept(KV)
    paths = [(text, kept.file(text)) for text in texts]
    for block in list(kept.tree):
        if chance.random() < 0.3:
            block.part("kv").payload = None
    there = [
        sum(block.count for block in takewhile(lambda block: block.in_memory("kv"), path))
        for _, path in paths
    ]
    commons = [min(_common(text, new), most) for (text, _), most in zip(paths, there, strict=True)]
    match = kept.match(new)
    assert match.tokens == max(commons)
    assert all(block.in_memory("kv") for block in match.blocks)


@given(TEXTS, st.randoms(use_true_random=False), st.sampled_from([KV, HYBRID, RECURRENT]))
def test_a_tree_of_names_alone_finds_all_texts_in_whatever_order_they_came(
    texts: list[list[int]], chance: Random, layout: LayerKinds
) -> None:
    kept, names = Kept(layout), Kept(layout)
    for text in texts:
        kept.file(text)
    blocks = [block for block in kept.tree if any(part.exists for part in block.parts.values())]
    chance.shuffle(blocks)
    for block in blocks:
        assert block.parent is not None
        named = names.tree.add(block.key, block.parent.key, block.count)
        for kind in block.parts:
            named.part(kind).file_bytes = 1
    for text in texts:
        match = names.tree.match(names.root, token_array(text), layout, Block.has)
        assert match.tokens == kept.match(text).tokens == len(text)
        assert [block.end for block in match.blocks] == [
            min(end, len(text)) for end in range(SIZE, len(text) + SIZE, SIZE)
        ]


@given(TEXTS, st.randoms(use_true_random=False))
def test_nothing_is_left_of_blocks_of_which_nothing_is_left(
    texts: list[list[int]], chance: Random
) -> None:
    kept = Kept(HYBRID)
    for text in texts:
        kept.file(text)
    blocks = list(kept.tree)
    chance.shuffle(blocks)
    for block in blocks:
        for part in block.parts.values():
            part.payload = None
        kept.tree.prune(block)
    assert len(kept.tree) == 0
    assert not kept.root.children


def test_a_block_that_somebody_holds_stays_in_the_tree() -> None:
    kept = Kept(KV)
    first, second = kept.file([1] * SIZE + [0] * SIZE)
    second.holders += 1
    for block in (first, second):
        for part in block.parts.values():
            part.payload = None
        kept.tree.prune(block)
    assert list(kept.tree) == [first, second]
    second.holders -= 1
    kept.tree.prune(second)
    assert len(kept.tree) == 0


def test_a_block_is_forgotten_although_the_one_before_it_was_never_there() -> None:
    tree = BlockTree(SIZE)
    unknown = block_key(root_key("model"), token_array([1] * SIZE))
    alone = tree.add(block_key(unknown, token_array([0] * SIZE)), unknown, SIZE)
    tree.prune(alone)
    assert len(tree) == 0
    assert not tree.add(unknown, root_key("model"), SIZE).children


def test_the_same_tokens_after_other_ones_are_another_block() -> None:
    tokens = token_array([1, 2, 3])
    one, other = root_key("one"), root_key("other")
    assert block_key(one, tokens) != block_key(other, tokens)
    assert block_key(one, tokens) != block_key(one, token_array([1, 2]))
    assert block_key(one, tokens) == block_key(one, token_array([1, 2, 3]))


@given(st.lists(st.integers(0, 1), max_size=300), st.lists(st.integers(0, 1), max_size=300))
def test_the_common_length_is_where_the_first_difference_is(
    one: list[int], other: list[int]
) -> None:
    same = [*one, *other]
    for a, b in ((one, other), (same, [*one, *other[:1]]), (same, same)):
        assert common_length(token_array(a), token_array(b)) == _common(a, b)
