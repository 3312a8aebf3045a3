"""A driven batch with a KV memory, its files and their threads; answers beside cold runs."""

import queue
from pathlib import Path

from tests.worker.engine.driven_batch import DrivenBatch, ids_alone
from worker.engine.kv_block_store import KVBlockStore, PrefixCacheConfig
from worker.engine.model import LoadedModel
from worker.engine.prefetch import PrefixPrefetcher
from worker.engine.prompt import PreparedSequence
from worker.kv_memory.file_threads import Result

_LIMIT_S = 20.0
_DISK_BYTES = 2**30


class KeptTexts:
    """One engine's life after another on the same folder.

    Attributes:
        batch: the present one.
        memory: what it keeps.
        foreseen: prompts that will come to it.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        block_tokens: int,
        folder: Path | None = None,
        memory_bytes: int = 2**40,
        budget_bytes: int = 2**40,
        max_size: int = 8,
        bits: int | None = None,
    ) -> None:
        self._model = model
        self._settings = PrefixCacheConfig(
            block_tokens=block_tokens,
            memory_bytes=memory_bytes,
            path=folder,
            disk_bytes=_DISK_BYTES,
            bits=bits,
        )
        self._max_size = max_size
        self._budget_bytes = budget_bytes
        self._alone: dict[int, list[int]] = {}
        self._start()

    def _start(self) -> None:
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self.memory = KVBlockStore(self._settings, self._results.put)
        self.memory.start()
        self.batch = DrivenBatch(
            self._model,
            max_size=self._max_size,
            budget_bytes=self._budget_bytes,
            kv_memory=self.memory,
        )
        self.prefetched = PrefixPrefetcher(self.memory, lambda _: self.batch.batch.prefix_cache)
        if self.memory.files is not None:
            self.take_one()

    def answers(self, *sequences: PreparedSequence, compare: bool = True) -> list[list[int]]:
        """What is generated, all at once; compared with what each would get alone and cold."""
        self.batch.add(*sequences)
        while self.batch.waits or self.batch.busy:
            if self.batch.busy:
                self.batch.turn()
            else:
                self.take_one()
        self.settle()
        answers = [self.batch.ids(each.order.sequence) for each in sequences]
        if compare:
            for each, answer in zip(sequences, answers, strict=True):
                assert answer == ids_alone(self._model, each), each.order.sequence
        return [[token for token in answer if token is not None] for answer in answers]

    def prefetch(self, *sequences: PreparedSequence) -> None:
        """They will come: have read what is read for that."""
        for prepared in sequences:
            self.prefetched.add(prepared)
        self.read_on()

    def read_on(self) -> None:
        """Have read what is yet to be read for those that will come."""
        assert self.memory.files is not None
        self.prefetched.advance()
        while self.memory.files.busy:
            self.take_one()
            self.prefetched.advance()

    def settle(self) -> None:
        """Have all written that is to be, and nothing on its way."""
        files = self.memory.files
        while self.memory.can_write:
            self.memory.write_one()
        while files is not None and (files.busy or self.memory.can_write):
            self.take_one()
            if self.memory.can_write:
                self.memory.write_one()

    def forget_memory(self) -> None:
        """Only what is on disk is left."""
        self.memory.limit(0)
        assert self.memory.memory.held_bytes == 0
        self.memory.limit(self._settings.memory_bytes)

    def squeeze(self, share: float) -> None:
        """Leave this share of what the rows that decode need, so that some must give way."""
        self.batch.read_ahead()
        self.batch.batch.release_slack()
        accounting = self.batch.accounting
        accounting.budget_bytes = int(share * accounting.held_bytes)
        accounting.ensure_free(lambda: 0)

    def restart(self, model: LoadedModel | None = None) -> None:
        """The engine ends and another one starts; maybe with another model."""
        self._model = model or self._model
        self.close()
        self._start()

    def close(self) -> None:
        self.memory.close()

    def take_one(self) -> None:
        self.memory.handle_result(self._results.get(timeout=_LIMIT_S))
