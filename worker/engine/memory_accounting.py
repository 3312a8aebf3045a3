"""Memory accounting of an engine's KV caches, and preemption of sequences if memory runs short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.engine.caches import CacheLayout
from worker.engine.row_cache import BLOCK_TOKENS


@dataclass(frozen=True, slots=True, order=True)
class PreemptionCandidate:
    """A sequence that holds memory. The greatest candidate is preempted first: the lowest priority,
    then the latest arrival."""

    priority: int
    arrived_at: float
    sequence: int


class AccountedBatch(Protocol):
    """The batch of a model, as the accounting sees it.

    Attributes:
        held_bytes: of all its caches, padding and free slots included, and the full caches of
            prompts that are being prefilled.
        growth_bytes: needed if each of its groups grows by a block.
    """

    @property
    def held_bytes(self) -> int: ...
    @property
    def growth_bytes(self) -> int: ...
    @property
    def preemption_candidates(self) -> Sequence[PreemptionCandidate]: ...
    def release_slack(self) -> None: ...
    def preempt(self, sequence: int) -> None: ...


class KVAccounting:
    """Accounts for the KV caches of all models; consulted before memory is allocated. Belongs to
    the engine thread.

    Args:
        lend: receives the number of unused bytes, which KV memory may use.

    Attributes:
        budget_bytes: the limit of the caches of all models together.
        preemptions: the number of preempted sequences.
    """

    def __init__(self, budget_bytes: int, lend: Callable[[int], None] = lambda _: None) -> None:
        self.budget_bytes = budget_bytes
        self._lend = lend
        self.preemptions = 0
        self._holders: list[AccountedBatch] = []

    def open(self, holder: AccountedBatch) -> None:
        self._holders.append(holder)

    def close(self, holder: AccountedBatch) -> None:
        self._holders.remove(holder)

    @property
    def held_bytes(self) -> int:
        return sum(holder.held_bytes for holder in self._holders)

    def admits(self, size: int) -> bool:
        """Whether a sequence of `size` bytes may start. If it does not fit, the batches release
        their unused capacity first. A sequence of any size may start while no cache is held."""
        if not self.fits_with_growth(size):
            self._release_slack()
        return self.fits_with_growth(size) or self.held_bytes == 0

    def fits_with_growth(self, size: int) -> bool:
        """Whether `size` bytes fit, and every running group can still grow by a block."""
        growth = sum(holder.growth_bytes for holder in self._holders)
        return self.fits(growth + size)

    def ensure_free(self, needed: Callable[[], int]) -> None:
        """Preempt sequences until the needed bytes are free. The last sequence is never preempted:
        it fits, because no context is longer than `max_tokens`.

        Args:
            needed: returns the bytes needed now; fewer after a preemption of the sequences that
                need them.
        """
        self._preempt_until_free(needed)
        self.lend_rest(needed())

    def lend_rest(self, needed: int = 0) -> None:
        """Lend the bytes that are neither held nor needed now."""
        self._lend(max(0, self.budget_bytes - self.held_bytes - needed))

    def _preempt_until_free(self, needed: Callable[[], int]) -> None:
        if self.fits(needed()):
            return
        self._release_slack()
        while not self.fits(needed()):
            candidates = [
                (candidate, holder)
                for holder in self._holders
                for candidate in holder.preemption_candidates
            ]
            if len(candidates) < 2:
                return
            candidate, holder = max(candidates, key=lambda pair: pair[0])
            holder.preempt(candidate.sequence)
            self.preemptions += 1

    def _release_slack(self) -> None:
        for holder in self._holders:
            holder.release_slack()

    def max_tokens(self, layout: CacheLayout) -> int:
        """Return the longest sequence that fits alone: while it grows, it holds its largest layer
        twice."""
        if layout.token_bytes == 0:
            return 2**31
        block_bytes = BLOCK_TOKENS * (layout.token_bytes + layout.layer_token_bytes)
        return (self.budget_bytes - layout.row_bytes) // block_bytes * BLOCK_TOKENS

    def fits(self, size: int) -> bool:
        """Whether `size` bytes are free."""
        return self.held_bytes + size <= self.budget_bytes
