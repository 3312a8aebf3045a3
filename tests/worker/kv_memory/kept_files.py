"""A file tier with its real threads and folder, driven from a test."""

import os
import queue
from pathlib import Path

import numpy as np

from worker.kv_memory.block import Block, Kind, root_key, token_array
from worker.kv_memory.block_file import BlockContent, Tensor
from worker.kv_memory.block_tree import BlockTree
from worker.kv_memory.file_threads import Result
from worker.kv_memory.file_tier import FileTier

LIMIT_S = 20.0


class KeptFiles:
    """Blocks of numbers, one after another or side by side."""

    def __init__(
        self, path: Path, *, cap_bytes: int = 2**40, daily_bytes: int | None = None
    ) -> None:
        self.results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self.tree = BlockTree(4)
        self.root = self.tree.root(root_key("model"))
        self.tier = FileTier(
            path, self.tree, cap_bytes=cap_bytes, daily_bytes=daily_bytes, put=self.results.put
        )
        self.tier.start()
        self.wait()

    def close(self) -> None:
        self.tier.close(LIMIT_S)

    def wait(self) -> tuple[Block, Kind, BlockContent | None] | None:
        """For the next result."""
        return self.tier.handle_result(self.results.get(timeout=LIMIT_S))

    def block(self, number: int, parent: Block | None = None) -> Block:
        return self.tree.get(parent or self.root, token_array([number, 0, 0, 0]))

    def write(self, block: Block, size_bytes: int = 4000) -> bool:
        """Write something that is told by the block; False where it may not be written."""
        if not self.tier.write(block, "kv", content_of(block, size_bytes)):
            return False
        self.wait()
        return bool(block.part("kv").file_bytes)

    def read(self, block: Block) -> BlockContent | None:
        self.tier.read(block, "kv")
        while (read := self.wait()) is None:
            pass  # what else became known, for example that a file could not be deleted
        assert read[:2] == (block, "kv")
        return read[2]

    def has(self, block: Block, size_bytes: int = 4000) -> bool:
        """Whether it comes back, as it was written; anything else would be a fault."""
        content = self.read(block)
        if content is None:
            return False
        assert bytes(content.tensors[0].data) == bytes(
            content_of(block, size_bytes).tensors[0].data
        )
        return True

    @property
    def files(self) -> list[Path]:
        """Of blocks."""
        return sorted(self.tier.path.glob("*.safetensors"))


def content_of(block: Block, size_bytes: int) -> BlockContent:
    seed = int.from_bytes(block.key[:4], "little")
    data = np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)
    return BlockContent([Tensor("0", "U8", (size_bytes,), data.data.cast("B"))])


def bytes_on_disk(folder: Path) -> int:
    """As `du` counts them, the folder too."""
    total = os.stat(folder).st_blocks * 512
    for path in folder.iterdir():
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # renamed or deleted meanwhile
            continue
    return total
