"""A batch that is stepped by hand, in the order in which the engine's loop does it."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from shared.ids import ModelId
from tests.worker.engine.expected_tokens import ExpectedTokens, drawn_alone
from worker.engine.batch import ModelBatch
from worker.engine.decoding import DecodeGroup, SampledTokens
from worker.engine.kv_block_store import KVBlockStore
from worker.engine.memory_accounting import KVAccounting
from worker.engine.model import LoadedModel
from worker.engine.prefill import PrefillProgress
from worker.engine.prefill_cost import PrefillCost
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import GeneratedToken

TOKEN_S = 0.001
ENOUGH_S = 1e6
"""A time for prefill that only `max_chunk_tokens` cuts short."""
_LIMIT = 20_000
_TICK_S = 1e-6


class SteadySpeed(PrefillCost):
    """Stays as it is, whatever passes take."""

    def record_pass(self, tokens: int, context: int, seconds: float) -> None:
        pass


def steady(model: LoadedModel, *, overhead_tokens: int = 20) -> LoadedModel:
    """The model with a prefill speed that does not depend on this machine: a pass costs as
    much as so many tokens, and a millisecond for each of its own."""
    speed = SteadySpeed(floor_s=(overhead_tokens + 0.5) * TOKEN_S, token_s=TOKEN_S)
    return replace(model, prefill_speed=speed)


class DrivenBatch:
    """One model's batch; the loop around it is that of the engine, without its clock.

    Attributes:
        tokens: all that came so far, by sequence.
        progress: of all prefill so far.
        preempted: who gave way, in order.
        restored: how many tokens of a sequence were kept, where there were any.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_size: int = 8,
        max_chunk_tokens: int = 64,
        budget_bytes: int = 2**40,
        kv_memory: KVBlockStore | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Without a `kv_memory` nothing is kept; without a `clock` every step takes as
        long, and nobody waits for long."""
        self.accounting = KVAccounting(
            budget_bytes, kv_memory.limit if kv_memory else lambda _: None
        )
        kept = PrefixCache(kv_memory, model.layout, model.fingerprint) if kv_memory else None
        self.batch = ModelBatch(
            model,
            self.accounting,
            max_size=max_size,
            max_chunk_tokens=max_chunk_tokens,
            prefix_cache=kept,
            clock=clock or itertools.count(step=_TICK_S).__next__,
        )
        self._clock = clock
        self.restored: dict[int, int] = {}
        self.tokens: dict[int, list[GeneratedToken]] = defaultdict(list)
        self.progress: list[PrefillProgress] = []
        self.preempted: list[int] = []
        self._ahead: SampledTokens | None = None
        self._removed: set[int] = set()

    @property
    def groups(self) -> list[DecodeGroup]:
        return self.batch.groups

    @property
    def busy(self) -> bool:
        prefills = self.batch.next_due is not None
        return bool(self.groups or self._ahead or prefills or self.batch.can_join)

    @property
    def waits(self) -> bool:
        """Whether somebody is to be prefilled, now or once files are read."""
        return self.batch.measured(ModelId("tiny"), 0.0).waiting > 0

    def add(self, *sequences: PreparedSequence) -> None:
        for prepared in sequences:
            self.batch.add(prepared)

    def remove(self, sequence: int) -> None:
        """As the engine does when a sequence is cancelled."""
        self._removed.add(sequence)
        self.batch.remove(sequence)
        self.batch.retire()

    def ids(self, sequence: int) -> list[int | None]:
        """The tokens of a sequence so far."""
        return [token.token_id for token in self.tokens[sequence]]

    def turn(self, *, chunks: int = 1, seconds: float = ENOUGH_S) -> None:
        """A step of one group, and up to so many chunks of prefill once all have stepped."""
        drawn = self._draw()
        unread = [each for each in (self._ahead, drawn) if each is not None]
        self._ahead = None
        may_prefill = chunks > 0 and all(group.stepped for group in self.groups)
        if may_prefill and self.batch.next_due is not None:
            self._prefill(unread, chunks, seconds)
        elif drawn is not None and not drawn.has_fresh and not self.batch.can_join:
            self._ahead = unread.pop()
        self._read(unread)
        self.batch.retire()
        if self._ahead is None:
            self.batch.join()
            self._take_first()
        self._check()

    def read_ahead(self) -> None:
        """As the engine does before somebody gives way."""
        if self._ahead is not None:
            unread, self._ahead = [self._ahead], None
            self._read(unread)
            self.batch.retire()

    def prefill(self, *, chunks: int = 1, seconds: float = ENOUGH_S) -> list[PrefillProgress]:
        """Prefill alone, without a step before it."""
        seen = len(self.progress)
        self._prefill([], chunks, seconds)
        self._check()
        return self.progress[seen:]

    def finish(self) -> None:
        """Turn until there is nothing to do."""
        for _ in range(_LIMIT):
            if not self.busy:
                return
            self.turn()
        raise AssertionError("the batch never came to its end")

    def _draw(self) -> SampledTokens | None:
        while self.groups:
            group = self.batch.fair_share.next(self.groups)
            if self._ahead is not None and not self.batch.can_grow(group):
                self.read_ahead()
                continue
            has_rows = self.batch.ensure_capacity(group)
            self.preempted += self.batch.preempted
            self.batch.preempted.clear()
            if has_rows:
                began_at = self._clock() if self._clock else 0.0
                drawn = group.sample()
                seconds = self._clock() - began_at if self._clock else TOKEN_S
                self.batch.record_step(group, len(drawn), seconds)
                return drawn
        return None

    def _prefill(self, unread: list[SampledTokens], chunks: int, seconds: float) -> None:
        alone = not self.groups
        self._read(unread)
        for _ in range(chunks):
            if self.batch.next_due is None:
                break
            self.progress += self.batch.prefill(seconds)
            self.restored.update(self.batch.take_restored())
            self._take_first()
            if alone and any(row.fresh for group in self.groups for row in group.rows):
                break
        for group in self.groups:
            group.stepped = False

    def _read(self, unread: list[SampledTokens]) -> None:
        while unread:
            self._take(unread.pop(0).read())

    def _take_first(self) -> None:
        first, self.batch.first_tokens = self.batch.first_tokens, []
        if first:
            self._take(first)
            self.batch.retire()

    def _take(self, tokens: Sequence[GeneratedToken]) -> None:
        for token in tokens:
            if token.sequence in self._removed:
                continue
            self.tokens[token.sequence].append(token)
            if token.finish_reason is not None:
                self.batch.remove(token.sequence)

    def _check(self) -> None:
        """What holds after every turn."""
        held = self.batch.held_bytes
        assert held == self.accounting.held_bytes <= self.accounting.budget_bytes
        for group in self.groups:
            assert len(group) == len(group.lengths) <= group.cache.slots
            assert max(group.lengths) <= group.cache.width


def tokens_alone(model: LoadedModel, prepared: PreparedSequence) -> list[GeneratedToken]:
    """What a sequence gets when it is the only one."""
    single = DrivenBatch(model)
    single.add(prepared)
    single.finish()
    return single.tokens[prepared.order.sequence]


def ids_alone(model: LoadedModel, prepared: PreparedSequence) -> ExpectedTokens:
    """The tokens that a sequence gets when it is the only one."""
    return drawn_alone(model.network, prepared, ids_of(tokens_alone(model, prepared)))


def ids_of(tokens: Sequence[GeneratedToken]) -> list[int | None]:
    return [token.token_id for token in tokens]
