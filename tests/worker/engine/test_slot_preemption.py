"""Preemption of slots in a full batch: first the decision alone, then a batch whose forward passes
are real and whose durations come from a simulated clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.engine.driven_batch import TOKEN_S, DrivenBatch, ids_alone, steady
from tests.worker.engine.watched_network import prepared, random_ids
from worker.engine.model import LoadedModel
from worker.engine.slot_preemption import SlotHolder, SlotWaiter, row_to_preempt

FLOOR_TOKENS = 20
"""A pass of a prompt costs as much as so many tokens, and `TOKEN_S` for each of its own."""
STALL_S = 0.05
MOST_OF_WORK = 50
"""So many times its own work a short request takes at most: 40 times its prefill before it may take
a place, 4 times all of it until it does, and its own steps are shared."""


def placed(*since: float, priority: int = 1, left_s: float = 1000.0) -> list[SlotHolder]:
    return [SlotHolder(priority, each, left_s) for each in since]


def test_nobody_gives_way_before_the_other_is_overdue() -> None:
    waiting = SlotWaiter(overdue_at=100.0, priority=1, work_s=1.0)
    assert row_to_preempt(waiting, placed(0.0), 99.9) is None
    assert row_to_preempt(waiting, placed(0.0), 100.0) == 0


def test_who_has_had_a_place_longest_gives_it_up_and_not_before_some_times_the_others_work() -> (
    None
):
    waiting = SlotWaiter(overdue_at=0.0, priority=1, work_s=2.0)
    assert row_to_preempt(waiting, placed(5.0, 1.0, 3.0), 9.0) is None
    assert row_to_preempt(waiting, placed(5.0, 1.0, 3.0), 9.1) == 1


@pytest.mark.parametrize(("priority", "gives"), [(0, None), (1, 0), (2, 0)])
def test_nobody_gives_way_to_who_is_less_urgent(priority: int, gives: int | None) -> None:
    waiting = SlotWaiter(overdue_at=0.0, priority=1, work_s=1.0)
    assert row_to_preempt(waiting, placed(0.0, priority=priority), 100.0) == gives


def test_nobody_gives_way_who_will_have_ended_before_the_other_would() -> None:
    waiting = SlotWaiter(overdue_at=0.0, priority=1, work_s=2.0)
    assert row_to_preempt(waiting, placed(0.0, left_s=2.0), 100.0) is None
    assert row_to_preempt(waiting, placed(0.0, left_s=2.1), 100.0) == 0


def test_nobody_gives_way_where_nobody_decodes() -> None:
    assert row_to_preempt(SlotWaiter(0.0, 1, 1.0), [], 100.0) is None


def test_a_newcomer_takes_the_slot_of_the_client_that_has_most_at_once() -> None:
    newcomer = SlotWaiter(overdue_at=0.0, priority=1, work_s=1000.0, is_newcomer=True)
    rows = [
        SlotHolder(1, since, 1.0, client)
        for since, client in [(0.0, "ada"), (5.0, "eve"), (3.0, "eve"), (1.0, "bob"), (2.0, "bob")]
    ]
    assert row_to_preempt(newcomer, rows, 5.0) == 3
    assert row_to_preempt(newcomer, [*rows, SlotHolder(1, 4.0, 1.0, "eve")], 5.0) == 2


@pytest.mark.parametrize("priority", [0, 1])
def test_a_newcomer_takes_nobodys_only_slot_nor_a_more_urgent_one(priority: int) -> None:
    newcomer = SlotWaiter(overdue_at=0.0, priority=1, work_s=1.0, is_newcomer=True)
    alone = [SlotHolder(1, 0.0, 100.0, client) for client in ("ada", "eve")]
    assert row_to_preempt(newcomer, alone, 100.0) is None
    several = [SlotHolder(priority, 0.0, 100.0, "eve") for _ in range(2)]
    assert (row_to_preempt(newcomer, several, 100.0) is None) is (priority == 0)


# A batch.


class Device:
    """Says what passes take.

    Attributes:
        now: on its clock.
    """

    def __init__(self, fixed_s: float, each_s: float) -> None:
        self.now = 1000.0
        self._fixed_s = fixed_s
        self._each_s = each_s

    def took(self, rows: int, tokens: int) -> None:
        if tokens > 1:
            self.now += TOKEN_S * (FLOOR_TOKENS + 0.5 + rows * tokens)
        else:
            self.now += self.step_s(rows)

    def step_s(self, rows: int) -> float:
        return self._fixed_s + self._each_s * rows


class PricedNetwork:
    """The real network, on a simulated device."""

    def __init__(self, network: Any, device: Device) -> None:
        self._network = network
        self._device = device

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self._device.took(*tokens.shape)
        return cast(mx.array, self._network(tokens, cache=cache))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


@dataclass(frozen=True)
class Asked:
    """A request that comes at a time, with so many tokens of a prompt and of an answer."""

    at: float
    prompt: int
    answer: int


@dataclass
class Served:
    """When the first token came, and the last; -1 before."""

    first_at: float = -1.0
    last_at: float = -1.0


class Serving:
    """A batch with requests that come as time passes on a simulated device."""

    def __init__(self, model: LoadedModel, device: Device, *, places: int) -> None:
        model = replace(
            steady(model, overhead_tokens=FLOOR_TOKENS),
            end_ids=frozenset(),
            network=PricedNetwork(model.network, device),
        )
        self.device = device
        self.driven = DrivenBatch(
            model, max_size=places, max_chunk_tokens=2048, clock=lambda: device.now
        )

    def serve(self, asked: Sequence[Asked], until: Callable[[list[Served]], bool]) -> list[Served]:
        """What became of each, as far as it was waited for."""
        began_at = self.device.now
        coming = sorted(range(len(asked)), key=lambda number: asked[number].at)
        served = [Served() for _ in asked]
        while not until(served):
            while coming and began_at + asked[coming[0]].at <= self.device.now:
                number = coming.pop(0)
                one = asked[number]
                ids = random_ids(one.prompt, number)
                self.driven.add(prepared(number, ids, max_tokens=one.answer))
            if not self.driven.busy:
                assert coming, "all were served, and yet somebody waits"
                self.device.now = began_at + asked[coming[0]].at
                continue
            self.driven.turn(seconds=STALL_S)
            for number, tokens in self.driven.tokens.items():
                what = served[number]
                if tokens and what.first_at < 0:
                    what.first_at = self.device.now - began_at
                if tokens and tokens[-1].finish_reason and what.last_at < 0:
                    what.last_at = self.device.now - began_at
        return served


LONG = st.builds(
    Asked, at=st.floats(0, 2), prompt=st.integers(20, 900), answer=st.integers(100, 400)
)
SHORT = st.builds(Asked, at=st.floats(0, 10), prompt=st.integers(5, 60), answer=st.integers(1, 4))


@settings(deadline=None, max_examples=25)
@given(
    long=st.lists(LONG, min_size=1, max_size=5),
    short=SHORT,
    places=st.sampled_from([1, 1, 2, 4]),
    fixed_s=st.sampled_from([0.05, 0.3, 1.0]),
    each_s=st.sampled_from([0.0, 0.05]),
)
def test_the_wait_of_a_short_request_is_bounded_by_its_own_work(
    loaded_model: LoadedModel,
    long: list[Asked],
    short: Asked,
    places: int,
    fixed_s: float,
    each_s: float,
) -> None:
    device = Device(fixed_s, each_s)
    served = Serving(loaded_model, device, places=places).serve(
        [short, *long], until=lambda served: served[0].last_at >= 0
    )
    prefill_s = TOKEN_S * (FLOOR_TOKENS + short.prompt)
    work_s = prefill_s + short.answer * device.step_s(places)
    assert served[0].last_at - short.at <= MOST_OF_WORK * work_s


DEAR = 0.3  # seconds a step: nobody waits 40 times its prefill without a few steps of others
LONG_ONES = [Asked(0.0, 40, 60), Asked(0.1, 90, 50), Asked(0.2, 20, 70)]


@pytest.mark.parametrize("places", [1, 2])
def test_who_gives_its_place_up_goes_on_where_it_was(
    loaded_model: LoadedModel, places: int
) -> None:
    serving = Serving(loaded_model, Device(DEAR, 0.0), places=places)
    asked = [*LONG_ONES, *(Asked(4.0 * number, 10, 2) for number in range(6))]
    served = serving.serve(asked, until=lambda served: all(one.last_at >= 0 for one in served))
    assert served[3].last_at < served[0].last_at, "somebody gave its place up"
    alone = replace(loaded_model, end_ids=frozenset())
    for number, one in enumerate(asked):
        request = prepared(number, random_ids(one.prompt, number), max_tokens=one.answer)
        assert serving.driven.ids(number) == ids_alone(alone, request)
    assert serving.driven.preempted == []


def test_who_waits_for_its_place_can_leave(loaded_model: LoadedModel) -> None:
    serving = Serving(loaded_model, Device(DEAR, 0.0), places=1)
    served = serving.serve(
        [LONG_ONES[0], Asked(1.0, 10, 3)], until=lambda served: served[1].first_at >= 0
    )
    assert served[0].last_at < 0
    serving.driven.remove(0)
    before = serving.driven.ids(0)
    serving.driven.finish()
    assert serving.driven.ids(0) == before and len(serving.driven.ids(1)) == 3
    assert serving.driven.accounting.held_bytes == 0


def test_memory_is_taken_from_who_waits_for_its_place_too(loaded_model: LoadedModel) -> None:
    """And it goes on where it was, when there is room again."""
    device = Device(DEAR, 0.0)
    serving = Serving(loaded_model, device, places=1)
    serving.serve([LONG_ONES[0], Asked(1.0, 10, 3)], until=lambda served: served[1].first_at >= 0)
    serving.driven.batch.preempt(0)
    assert serving.driven.batch.preempted == [0]
    serving.driven.finish()
    alone = replace(loaded_model, end_ids=frozenset())
    request = prepared(0, random_ids(LONG_ONES[0].prompt, 0), max_tokens=LONG_ONES[0].answer)
    assert serving.driven.ids(0) == ids_alone(alone, request)


def test_a_newcomer_is_served_while_another_client_has_all_slots(
    loaded_model: LoadedModel,
) -> None:
    """The row that gave way goes on where it was, to the same answer."""
    device = Device(0.1, 0.0)
    serving = Serving(loaded_model, device, places=2)
    work = [
        prepared(number, random_ids(20, number), max_tokens=60, client=client, is_newcomer=is_new)
        for number, (client, is_new) in enumerate([("eve", False), ("eve", False), ("ada", True)])
    ]
    for each in work[:2]:
        serving.driven.add(each)
    for _ in range(5):
        serving.driven.turn(seconds=STALL_S)
    asked_at = device.now
    serving.driven.add(work[2])
    while not serving.driven.tokens[2]:
        serving.driven.turn(seconds=STALL_S)
    assert device.now - asked_at < 0.5
    while serving.driven.busy:
        serving.driven.turn(seconds=STALL_S)
    model = replace(loaded_model, end_ids=frozenset())
    assert all(serving.driven.ids(number) == ids_alone(model, work[number]) for number in range(3))


def test_a_newcomers_long_prompt_does_not_hold_up_short_ones(loaded_model: LoadedModel) -> None:
    device = Device(0.1, 0.0)
    serving = Serving(loaded_model, device, places=4)
    serving.driven.add(prepared(0, random_ids(20, 0), max_tokens=60, client="eve"))
    serving.driven.turn(seconds=STALL_S)
    long = prepared(1, random_ids(900, 1), max_tokens=2, client="ada", is_newcomer=True)
    serving.driven.add(long)
    serving.driven.turn(seconds=STALL_S)
    serving.driven.add(prepared(2, random_ids(5, 2), max_tokens=2, client="eve"))
    while not serving.driven.tokens[2]:
        serving.driven.turn(seconds=STALL_S)
    assert not serving.driven.tokens[1]
    while serving.driven.busy:
        serving.driven.turn(seconds=STALL_S)
    assert serving.driven.tokens[1]
