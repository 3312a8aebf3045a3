"""What the KV caches of an engine take, and may take; who gives way when that is not enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from worker.engine.caches import CacheLayout
from worker.engine.row_cache import BLOCK_TOKENS


@dataclass(frozen=True, slots=True, order=True)
class PreemptionCandidate:
    """A sequence that holds memory; of all claims the greatest gives way first: the lowest
    priority, then the youngest."""

    priority: int
    arrived_at: float
    sequence: int


class MemoryHolder(Protocol):
    """The batch of a model, as the ledger sees it.

    Attributes:
        held_bytes: of all its caches, padding and free slots included, and what prompts on
            their way will hold.
        growth_bytes: what its groups need when each grows by a block.
    """

    @property
    def held_bytes(self) -> int: ...
    @property
    def growth_bytes(self) -> int: ...
    @property
    def claims(self) -> Sequence[PreemptionCandidate]: ...
    def release_slack(self) -> None: ...
    def preempt(self, sequence: int) -> None: ...


class KVAccounting:
    """Asked before anything is put into memory. Belongs to the engine thread.

    Args:
        lend: told how many bytes nobody needs now, so that what is kept of texts may take them.

    Attributes:
        budget_bytes: for the caches of all models together.
        preemptions: how often a sequence gave way.
    """

    def __init__(self, budget_bytes: int, lend: Callable[[int], None] = lambda _: None) -> None:
        self.budget_bytes = budget_bytes
        self._lend = lend
        self.preemptions = 0
        self._holders: list[MemoryHolder] = []

    def open(self, holder: MemoryHolder) -> None:
        self._holders.append(holder)

    def close(self, holder: MemoryHolder) -> None:
        self._holders.remove(holder)

    @property
    def held_bytes(self) -> int:
        return sum(holder.held_bytes for holder in self._holders)

    def admits(self, size: int) -> bool:
        """Whether a sequence of this many bytes may start. If it does not fit, the batches release
        their unused capacity first. A sequence of any size may start in an empty ledger."""
        if not self.has_room(size):
            self._release_slack()
        return self.has_room(size) or self.held_bytes == 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes fit, and what runs can still grow by a block."""
        growth = sum(holder.growth_bytes for holder in self._holders)
        return self.fits(growth + size)

    def make_room(self, needed: Callable[[], int]) -> None:
        """Preempt sequences until so many bytes are free. The last one is left alone: it fits,
        because no context is longer than `max_tokens`.

        Args:
            needed: how many bytes, now: less when those who need them gave way themselves.
        """
        self._make_room(needed)
        self.lend_rest(needed())

    def lend_rest(self, needed: int = 0) -> None:
        """Lend what is neither held nor needed now."""
        self._lend(max(0, self.budget_bytes - self.held_bytes - needed))

    def _make_room(self, needed: Callable[[], int]) -> None:
        if self.fits(needed()):
            return
        self._release_slack()
        while not self.fits(needed()):
            claims = [(claim, holder) for holder in self._holders for claim in holder.claims]
            if len(claims) < 2:
                return
            claim, holder = max(claims, key=lambda pair: pair[0])
            holder.preempt(claim.sequence)
            self.preemptions += 1

    def _release_slack(self) -> None:
        for holder in self._holders:
            holder.release_slack()

    def max_tokens(self, layout: CacheLayout) -> int:
        """The longest text of one sequence that fits: growing, it holds its largest layer
        twice."""
        if layout.token_bytes == 0:
            return 2**31
        block_bytes = BLOCK_TOKENS * (layout.token_bytes + layout.layer_token_bytes)
        return (self.budget_bytes - layout.row_bytes) // block_bytes * BLOCK_TOKENS

    def fits(self, size: int) -> bool:
        """Whether so many bytes are free."""
        return self.held_bytes + size <= self.budget_bytes
