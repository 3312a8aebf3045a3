"""A piece of a text whose keys and values, or whose state, are kept; and its name.

The name of a block is a hash of its tokens and of the name of the block before it, so it stands
for the whole text up to its end (as in vLLM's prefix caching, docs/design/prefix_caching.md).
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NewType, Protocol

BlockKey = NewType("BlockKey", bytes)
KEY_BYTES = 16

Kind = Literal["kv", "state"]
"""Of a block are kept the keys and values of its own tokens, and the state at its end of the
layers whose cache cannot be cut."""

if TYPE_CHECKING:
    TokenIds = array[int]  # of the type code "I"
else:
    TokenIds = array


class BlockPayload(Protocol):
    """What is kept in memory; only the engine knows what is in it."""

    @property
    def nbytes(self) -> int: ...


def token_array(ids: Iterable[int]) -> TokenIds:
    return array("I", ids)


def root_key(fingerprint: str) -> BlockKey:
    """Where the texts of a model begin."""
    return BlockKey(hashlib.blake2b(fingerprint.encode(), digest_size=KEY_BYTES).digest())


def block_key(parent: BlockKey, tokens: TokenIds) -> BlockKey:
    """The name of the block with these tokens after `parent`."""
    return BlockKey(hashlib.blake2b(parent + tokens.tobytes(), digest_size=KEY_BYTES).digest())


def block_key_of(text: str) -> BlockKey:
    """The name that was written as hexadecimal digits.

    Raises:
        ValueError: it is none.
    """
    return BlockKey(bytes.fromhex(text))


@dataclass(slots=True)
class BlockPart:
    """One kind of what is kept of a block.

    Attributes:
        payload: in memory, or None.
        file_bytes: what its file takes on disk; 0 where there is none.
    """

    payload: BlockPayload | None = None
    file_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What it takes in memory, or will take."""
        return self.memory_bytes or self.file_bytes

    @property
    def there(self) -> bool:
        return self.payload is not None or self.file_bytes > 0

    @property
    def memory_bytes(self) -> int:
        return self.payload.nbytes if self.payload is not None else 0


@dataclass(slots=True, eq=False)
class Block:
    """A node of the tree of texts; all below it begin with its text.

    Attributes:
        start: tokens before it.
        count: of its own; only the last of a text has fewer than the others.
        tokens: its own; None where only the file is known.
        holders: who needs it to stay in the tree.
        users: who needs its parts to stay where they are.
        pins: texts that go on with it and are to be kept before others.
        wishes: prompts that will come and begin with it: of what nobody uses it leaves memory late.
    """

    key: BlockKey
    parent: "Block | None"
    start: int
    count: int
    tokens: TokenIds | None = None
    children: "dict[BlockKey, Block]" = field(default_factory=dict)
    parts: dict[Kind, BlockPart] = field(default_factory=dict)
    holders: int = 0
    users: int = 0
    pins: int = 0
    wishes: int = 0

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def path(self) -> "list[Block]":
        """From the first block of the text to this one."""
        path = []
        block = self
        while block.parent is not None:
            path.append(block)
            block = block.parent
        return path[::-1]

    def part(self, kind: Kind) -> BlockPart:
        return self.parts.setdefault(kind, BlockPart())

    def has(self, kind: Kind) -> bool:
        part = self.parts.get(kind)
        return part is not None and part.there

    def in_memory(self, kind: Kind) -> bool:
        part = self.parts.get(kind)
        return part is not None and part.payload is not None
