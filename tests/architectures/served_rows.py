"""Rows that the engine's batch serves: at once, one after another, again and going on."""

from collections.abc import Sequence
from dataclasses import replace

from tests.architectures.references import Ids
from tests.worker.engine.driven_batch import DrivenBatch, steady
from tests.worker.engine.samplings import sampling
from tests.worker.engine.watched_network import prepared
from worker.engine.caches import CacheLayout
from worker.engine.kv_block_store import KVBlockStore, PrefixCacheConfig
from worker.engine.model import LoadedModel
from worker.engine.prompt import PreparedSequence
from worker.engine.sequence import GeneratedToken

ANSWER_TOKENS = 24
_BLOCK_TOKENS = 16
_TURNS_BETWEEN = 3
_COPIES = 3
_HOW = sampling(logprobs=5)

Answers = dict[Ids, list[GeneratedToken]]
"""By prompt."""


class ServedRows:
    """One model; each method has a batch of its own serve prompts.

    Args:
        together: whether rows may share a cache, where the layout allows it at all; else each has
            its own.
    """

    def __init__(self, model: LoadedModel, *, together: bool) -> None:
        layout = CacheLayout(model.network)
        layout.allows_batching = layout.allows_batching and together
        self._model = steady(replace(model, layout=layout))

    @property
    def can_batch(self) -> bool:
        return self._model.layout.allows_batching

    def copies(self, prompt: Ids) -> list[list[GeneratedToken]]:
        """Some rows of the same prompt, together."""
        driven = DrivenBatch(self._model)
        sequences = [_sequence(number, prompt) for number in range(_COPIES)]
        driven.add(*sequences)
        driven.finish()
        return [driven.tokens[number] for number in range(_COPIES)]

    def at_once(self, prompts: Sequence[Ids]) -> Answers:
        """All together, from nothing."""
        return self._answers(DrivenBatch(self._model), prompts, turns_between=0)

    def phases(self, prompts: Sequence[Ids], longer: Sequence[Ids]) -> dict[str, Answers]:
        """With a prefix cache: prompts that join one after another, the same prompts again, and
        longer prompts with those as prefixes."""
        memory = KVBlockStore(
            PrefixCacheConfig(block_tokens=_BLOCK_TOKENS, memory_bytes=2**30), lambda _: None
        )
        driven = DrivenBatch(self._model, kv_memory=memory)
        answers = {
            "staggered": self._answers(driven, prompts, turns_between=_TURNS_BETWEEN),
            "again": self._answers(driven, prompts, first=100, turns_between=0),
            "longer": self._answers(driven, longer, first=200, turns_between=0),
        }
        memory.close()
        return answers

    def _answers(
        self, driven: DrivenBatch, prompts: Sequence[Ids], *, first: int = 0, turns_between: int
    ) -> Answers:
        for number, prompt in enumerate(prompts, start=first):
            driven.add(_sequence(number, prompt))
            for _ in range(turns_between):
                driven.turn()
        driven.finish()
        return {prompt: driven.tokens[first + number] for number, prompt in enumerate(prompts)}


def _sequence(number: int, prompt: Ids) -> PreparedSequence:
    return prepared(number, list(prompt), max_tokens=ANSWER_TOKENS, how=_HOW, ignore_eos=True)
