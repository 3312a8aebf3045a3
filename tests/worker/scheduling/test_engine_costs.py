"""What decides between engines: what they keep of a prompt, and how busy they are."""

import itertools
from collections import Counter
from typing import Any

from shared.ids import BootId
from tests.worker.recording_engine import RecordingEngine
from tests.worker.sessions.stores import new_store
from tests.worker.values import MAC, TINY, active
from worker.link.facts import SequenceCached
from worker.requests.active_request import ActiveRequest
from worker.scheduling.engine_costs import EngineCostEstimator
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.model_statistics import ModelStatistics

LONG = {"role": "system", "content": "x" * 4096}
OTHER = {"role": "system", "content": "y" * 4096}
USER = {"role": "user", "content": "Hello"}


class Engines:
    """Two that have measured: 1,000 prompt tokens a second, steps of 20 ms and 5 for each row."""

    def __init__(
        self,
        *,
        measured: bool = True,
        cores: int | None = None,
        line: tuple[float, float] = (20.0, 5.0),
    ) -> None:
        self.engines = [RecordingEngine(index) for index in range(2)]
        for engine in self.engines:
            if measured:
                engine.measures(limits={TINY: 8}, step_ms=25, prefill_tokens_per_s=1000, line=line)
        self.speeds = ModelStatistics(self.engines)
        self.links = LocalPrefixIndex(MAC, BootId("b"), new_store())
        self.costs = EngineCostEstimator(self.engines, self.speeds, self.links, cores)
        self._ends = itertools.count()
        self.sequences: Counter[int] = Counter()

    def request(self, *messages: dict[str, str], **fields: Any) -> ActiveRequest:
        return active(messages=[*messages], prompt=None, **fields)

    def keeps(self, engine: int, *messages: dict[str, str]) -> None:
        """An engine keeps a prompt of a thousand tokens."""
        request = self.request(*messages)
        request.start_choice(request.choices[0], 1000)
        kept = SequenceCached(1, f"{next(self._ends):02x}", 1000)
        self.links.on_sequence_cached(engine, kept, request)

    def answers_have(self, tokens: int) -> None:
        for _ in range(100):
            self.speeds.answered(TINY, tokens)

    def runs(self, *engines: int) -> None:
        """Requests that have nothing in common, one on each of these."""
        for engine in engines:
            text = {"role": "user", "content": f"{next(self._ends)}: {'z' * 4096}"}
            self.costs.on_admitted(self.request(text), engine)
            self.sequences[engine] += 1

    def best(self, request: ActiveRequest, sequences: tuple[int, int] | None = None) -> int:
        cost = self.costs.of(request)
        sequences = sequences or (self.sequences[0], self.sequences[1])
        assert cost is not None
        return min(range(2), key=lambda index: cost(self.engines[index], sequences[index]))


def test_a_prompt_goes_where_its_beginning_is_kept() -> None:
    two = Engines()
    two.answers_have(10)
    two.keeps(1, LONG, USER)
    assert two.best(two.request(LONG, {"role": "user", "content": "Bye"})) == 1
    assert two.best(two.request(OTHER, USER)) == 0


def test_unless_the_engine_is_so_busy_that_computing_it_again_is_sooner() -> None:
    """A thousand tokens take a second: as long as 10 tokens take longer with 20 rows more."""
    two = Engines()
    two.answers_have(10)
    two.keeps(1, LONG, USER)
    again = two.request(LONG, USER)
    assert two.best(again, sequences=(0, 15)) == 1
    assert two.best(again, sequences=(0, 25)) == 0


def test_what_is_computed_now_for_another_one_counts_as_kept() -> None:
    two = Engines()
    two.answers_have(10)
    first = two.request(LONG, USER)
    two.costs.on_admitted(first, 1)
    like = two.request(LONG, {"role": "user", "content": "Bye"})
    assert two.best(like) == 1
    two.costs.on_ended(first)
    assert two.best(like) == 0


def test_long_answers_spread_over_engines_whatever_is_kept() -> None:
    two = Engines()
    two.answers_have(1000)
    two.keeps(1, LONG, USER)
    assert two.best(two.request(LONG, USER), sequences=(0, 1)) == 0


def test_an_answer_is_no_longer_than_its_request_allows() -> None:
    two = Engines()
    two.answers_have(1000)
    two.keeps(1, LONG, USER)
    short = two.request(LONG, USER, max_tokens=10)
    assert two.best(short, sequences=(0, 1)) == 1


def test_before_anything_was_measured_nobody_can_say() -> None:
    two = Engines(measured=False)
    assert two.costs.of(two.request(LONG, USER)) is None


def test_of_one_engine_nothing_is_to_be_said() -> None:
    two = Engines()
    alone = EngineCostEstimator(two.engines[:1], two.speeds, two.links, 2)
    assert alone.of(two.request(LONG, USER)) is None


SHORT = {"role": "user", "content": "x"}


def test_few_requests_stay_together_and_many_are_spread() -> None:
    """Steps of 80 ms are dear for a row alone, and cheap for ten."""
    two = Engines(cores=2, line=(80.0, 4.0))
    two.answers_have(100)
    two.runs(0)
    assert two.best(two.request(SHORT)) == 0
    two.runs(*[0] * 23)
    assert two.best(two.request(SHORT)) == 1


def test_when_few_are_left_one_engine_runs_dry() -> None:
    two = Engines(cores=2, line=(80.0, 4.0))
    two.answers_have(100)
    two.runs(0, 0, 1)
    assert two.best(two.request(SHORT)) == 0
    two.runs(*[0] * 16, *[1] * 15)
    assert two.best(two.request(SHORT)) == 1


def test_long_prompts_are_computed_side_by_side() -> None:
    two = Engines(cores=2)
    two.answers_have(5)
    two.runs(0)
    assert two.best(two.request(LONG, USER)) == 1


def test_what_an_idle_engine_keeps_is_worth_its_start_where_it_is_long() -> None:
    two = Engines(cores=2)
    two.answers_have(20)
    two.runs(0)
    two.keeps(1, LONG, USER)
    assert two.best(two.request(LONG, {"role": "user", "content": "Bye"})) == 1


def test_engines_with_threads_of_their_own_are_used_alike() -> None:
    two = Engines(cores=None)
    two.answers_have(100)
    two.runs(0)
    assert two.best(two.request(SHORT)) == 1
