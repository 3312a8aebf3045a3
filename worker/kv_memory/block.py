"""Blocks of KV memory and their keys.

The key of a block is a hash of its tokens and of the key of the block before it, so it identifies
the whole prefix up to the end of the block (as in vLLM's prefix caching,
docs/design/prefix_caching.md).
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NewType, Protocol

BlockKey = NewType("BlockKey", bytes)
KEY_BYTES = 16

Kind = Literal["kv", "state"]
"""The parts of a block: `kv`, keys and values of its tokens; `state`, at its end, of the layers
whose cache cannot be trimmed."""

if TYPE_CHECKING:
    TokenIds = array[int]  # of the type code "I"
else:
    TokenIds = array


class InMemoryPayload(Protocol):
    """A part of a block in memory; its content is opaque here, known to the engine only."""

    @property
    def nbytes(self) -> int: ...


def token_array(ids: Iterable[int]) -> TokenIds:
    return array("I", ids)


def root_key(fingerprint: str) -> BlockKey:
    """Return the key of the root of a model's sequences."""
    return BlockKey(hashlib.blake2b(fingerprint.encode(), digest_size=KEY_BYTES).digest())


def block_key(parent: BlockKey, tokens: TokenIds) -> BlockKey:
    """Return the key of the block with these tokens after `parent`."""
    return BlockKey(hashlib.blake2b(parent + tokens.tobytes(), digest_size=KEY_BYTES).digest())


def block_key_of(text: str) -> BlockKey:
    """Parse a key from hexadecimal digits.

    Raises:
        ValueError: the text has other characters.
    """
    return BlockKey(bytes.fromhex(text))


@dataclass(slots=True)
class BlockPart:
    """One part of a block, in memory, on disk, or both.

    Attributes:
        payload: the part in memory, or None.
        file_bytes: size of its file on disk; 0 without a file.
    """

    payload: InMemoryPayload | None = None
    file_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in memory; if it is only on disk, the size of its file."""
        return self.memory_bytes or self.file_bytes

    @property
    def exists(self) -> bool:
        return self.payload is not None or self.file_bytes > 0

    @property
    def memory_bytes(self) -> int:
        return self.payload.nbytes if self.payload is not None else 0


@dataclass(slots=True, eq=False)
class Block:
    """A node of the prefix tree; the sequences of its descendants begin with its prefix.

    Attributes:
        start: number of tokens before it.
        count: number of its tokens; only the last block of a sequence may have fewer than others.
        tokens: its tokens; None if only its file is known.
        holders: reference count; while positive, the block stays in the tree.
        users: reference count; while positive, its parts stay in memory and on disk.
        pins: number of pinned sequences with this block; they are evicted last.
        prefetches: number of queued prompts with this block; it is evicted from memory late.
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
    prefetches: int = 0

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def path(self) -> "list[Block]":
        """The blocks from the first one of the sequence to this one."""
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
        return part is not None and part.exists

    def in_memory(self, kind: Kind) -> bool:
        part = self.parts.get(kind)
        return part is not None and part.payload is not None
