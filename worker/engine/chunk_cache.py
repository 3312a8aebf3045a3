"""The KV cache of one layer of chunked attention, for one row.

In such a layer (Llama 4) a token attends to those before it in its own chunk of the text. mlx-lm's
`ChunkedKVCache` holds as many of the last tokens as a chunk has, wherever chunks begin, and copies
all of them for every token once it is full. Here a chunk goes as a whole when it is complete, as
nobody attends to it any more: that is exact, holds less, and copies little. Speaks the protocol of
mlx-lm's class. Models make one mask for all rows from its position, so rows cannot share one.
"""

from collections.abc import Sequence

import mlx.core as mx

from worker.engine.row_cache import BLOCK_TOKENS

State = tuple[mx.array | None, mx.array | None, int, int]


class ChunkCache:
    """Keys and values of the tokens of the chunk that is not complete.

    Attributes:
        keys, values: [1, heads, width, dim]; None when a chunk begins.
        offset: the position of the next token.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.offset = 0

    # What models call.

    @property
    def start_position(self) -> int:
        """Of the first token that is held."""
        return self.offset - self._held

    def maybe_trim_front(self) -> None:
        """Nothing is left to trim."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add [1, heads, new tokens, dim] each.

        Returns:
            Those that were held, and the new ones behind them.
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

    # What we do with rows.

    @property
    def state(self) -> State:
        """Without free room: who goes on from it writes into room of its own."""
        if self.keys is None or self.values is None:
            return None, None, self.offset, self.chunk_size
        held = self._held
        return self.keys[:, :, :held], self.values[:, :, :held], self.offset, self.chunk_size

    @classmethod
    def from_state(cls, state: State) -> "ChunkCache":
        keys, values, offset, chunk_size = state
        cache = cls(chunk_size)
        cache.keys, cache.values, cache.offset = keys, values, offset
        return cache

    def merge(self, caches: Sequence["ChunkCache"]) -> "ChunkCache":
        """The only one there may be."""
        (only,) = caches
        return only

    def extract(self, row: int) -> "ChunkCache":
        """A copy of the only row, to go on from here."""
        return self.from_state(self.state)

    @property
    def nbytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        return int(self.keys.nbytes + self.values.nbytes)

    @property
    def max_size(self) -> int:
        """The most tokens for which it holds room between two passes."""
        return self.chunk_size

    @property
    def _held(self) -> int:
        return self.offset % self.chunk_size

    def _with(self, array: mx.array | None, tokens: mx.array) -> mx.array:
        """[1, heads, width, dim] with new tokens behind those that are held."""
        held, end = self._held, self._held + tokens.shape[2]
        if array is None or array.shape[2] < end:
            blocks = -(-end // BLOCK_TOKENS)
            width = max(end, min(blocks * BLOCK_TOKENS, self.chunk_size))
            _, heads, _, dim = tokens.shape
            room = mx.zeros((1, heads, width - held, dim), tokens.dtype)
            array = room if array is None else mx.concatenate([array[:, :, :held], room], axis=2)
        array[:, :, held:end] = tokens
        return array
