"""The KV cache of one layer of chunked attention, for one row.

In such a layer (Llama 4) a token attends to earlier tokens of its own chunk only. mlx-lm's
`ChunkedKVCache` holds the last chunk-size tokens, wherever chunks begin, and copies all of them for
every token once it is full. This cache drops a chunk as a whole when the chunk is complete, because
no later token attends to it: that is exact, holds less, and copies little. The class has the
interface of mlx-lm's class. Models build one mask for all rows from its position, so rows cannot
share a cache.
"""

from collections.abc import Sequence

import mlx.core as mx

from worker.engine.row_cache import BLOCK_TOKENS

State = tuple[mx.array | None, mx.array | None, int, int]


class ChunkedAttentionCache:
    """Keys and values of the tokens of the incomplete chunk.

    Attributes:
        keys, values: [1, heads, width, dim]; None at the start of a chunk.
        offset: the position of the next token.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0

    # Called by models.

    @property
    def start_position(self) -> int:
        """The position of the first token that is held."""
        return self.offset - self._held

    def maybe_trim_front(self) -> None:
        """Do nothing: complete chunks are dropped already."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add [1, heads, new tokens, dim] each.

        Returns:
            The held keys and values, followed by the new ones.
        """
        end = self._held + keys.shape[2]
        all_keys, all_values = self._with(self.keys, keys), self._with(self.values, values)
        self.offset += keys.shape[2]
        if end < self.chunk_size:
            self.keys, self.values = all_keys, all_values
        elif self._held:
            begin = end - self._held
            self.keys = mx.contiguous(all_keys[:, :, begin:end])
            self.values = mx.contiguous(all_values[:, :, begin:end])
        else:
            self.keys = self.values = None
        return all_keys[:, :, :end], all_values[:, :, :end]

    # Called by the engine.

    @property
    def state(self) -> State:
        """Keys, values, offset and chunk size, without unused capacity: a cache made from this
        state allocates its own."""
        if self.keys is None or self.values is None:
            return None, None, self.offset, self.chunk_size
        held = self._held
        return self.keys[:, :, :held], self.values[:, :, :held], self.offset, self.chunk_size

    @classmethod
    def from_state(cls, state: State) -> "ChunkedAttentionCache":
        keys, values, offset, chunk_size = state
        cache = cls(chunk_size)
        cache.keys, cache.values, cache.offset = keys, values, offset
        return cache

    def merge(self, caches: Sequence["ChunkedAttentionCache"]) -> "ChunkedAttentionCache":
        """Return the only cache; rows cannot be batched."""
        (only,) = caches
        return only

    def extract(self, row: int) -> "ChunkedAttentionCache":
        """Return a copy of the only row."""
        return self.from_state(self.state)

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def max_size(self) -> int:
        """The largest number of tokens allocated between two passes."""
        return self.chunk_size

    @property
    def _held(self) -> int:
        return self.offset % self.chunk_size

    def _with(self, array: mx.array | None, tokens: mx.array) -> mx.array:
        """Return [1, heads, width, dim]: the held tokens followed by the new ones."""
        held, end = self._held, self._held + tokens.shape[2]
        if array is None or array.shape[2] < end:
            blocks = -(-end // BLOCK_TOKENS)
            width = max(end, min(blocks * BLOCK_TOKENS, self.chunk_size))
            _, heads, _, dim = tokens.shape
            free = mx.zeros((1, heads, width - held, dim), tokens.dtype)
            array = free if array is None else mx.concatenate([array[:, :, :held], free], axis=2)
        array[:, :, held:end] = tokens
        return array
