"""What workers keep, and who keeps a link, as they tell it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.prefix_cache_index import PrefixCacheIndex
from controller.fleet.registry import NodeRegistry
from shared.bus import Bus
from shared.ids import BootId, WorkerId
from shared.messages.engine_status import EngineStatus, PrefixCacheStatus
from shared.messages.events import KeptPrefixes, WorkerEvent
from shared.messages.prefixes import session_link
from shared.refused_messages import RefusedMessages
from tests.controller.simulated_worker import SimulatedWorker
from tests.controller.values import ADA, report
from tests.worker.virtual_time import Clock

LINKS = [f"{number:02x}" for number in range(6)]
WORKERS = [WorkerId(name) for name in ("a", "b", "c")]


def told(worker: str = "a", number: int = 1, *, boot: str = "b1", **fields: Any) -> KeptPrefixes:
    return KeptPrefixes(worker=WorkerId(worker), boot_id=BootId(boot), number=number, **fields)


def taken(bus: Bus, *messages: KeptPrefixes) -> PrefixCacheIndex:
    kept = PrefixCacheIndex(bus, NodeRegistry(silence_limit_s=60), RefusedMessages())
    for message in messages:
        kept.apply_report(message)
    return kept


def both_ways(kept: PrefixCacheIndex) -> None:
    """Who keeps a link is who has it among its links, and nothing is left of what nobody keeps."""
    held = {worker: set(kept.links(worker)) for worker in WORKERS}
    assert kept._workers_by_hash == {
        link: {worker for worker in WORKERS if link in held[worker]}
        for link in set().union(*held.values())
    }


pytestmark = pytest.mark.anyio


async def test_each_link_has_those_that_keep_it(bus: Bus) -> None:
    kept = taken(
        bus,
        told("a", links={"00": "memory", "01": "disk"}),
        told("b", links={"00": "disk"}),
    )
    assert sorted(kept.workers_caching("00")) == ["a", "b"] and list(
        kept.workers_caching("01")
    ) == ["a"]
    assert kept.links(WORKERS[0]) == {"00": "memory", "01": "disk"}
    assert not kept.workers_caching("02") and kept.links(WORKERS[2]) == {}


async def test_what_is_gone_has_one_keeper_less(bus: Bus) -> None:
    kept = taken(
        bus,
        told("a", links={"00": "memory", "01": "disk"}),
        told("b", links={"00": "disk"}),
        told("a", 2, links={"01": "memory"}, gone=["00", "00", "99"]),
    )
    assert list(kept.workers_caching("00")) == ["b"] and kept.links(WORKERS[0]) == {"01": "memory"}


async def test_the_whole_takes_the_place_of_all_before(bus: Bus) -> None:
    kept = taken(
        bus,
        told("a", links={"00": "memory", "01": "disk"}),
        told("a", 7, whole=True, links={"01": "disk", "02": "memory"}),
    )
    assert [bool(kept.workers_caching(link)) for link in LINKS[:3]] == [False, True, True]


async def test_a_boot_that_is_gone_keeps_nothing_and_an_old_one_takes_nothing_along(
    bus: Bus,
) -> None:
    kept = taken(bus, told("a", links={"00": "memory"}), told("a", boot="b2", links={"01": "disk"}))
    assert not kept.workers_caching("00") and list(kept.workers_caching("01")) == ["a"]
    kept.forget(WORKERS[0], BootId("b1"))
    assert list(kept.workers_caching("01")) == ["a"]
    kept.forget(WORKERS[0], BootId("b2"))
    assert not kept.workers_caching("01")
    both_ways(kept)


async def test_a_session_is_at_home_where_most_of_its_turns_are_known(bus: Bus) -> None:
    link = session_link(ADA, "s").hex()
    kept = taken(bus, told("a", sessions={link: 2}), told("b", sessions={link: 3}), told("c"))
    assert kept.home((ADA, "s")) == "b" and kept.home((ADA, "other")) is None
    kept.apply_report(told("b", 2, gone=[link]))
    assert kept.home((ADA, "s")) == "a"


async def test_the_answer_of_a_worker_that_left_meanwhile_is_not_kept(bus: Bus) -> None:
    registry = NodeRegistry(silence_limit_s=60)
    kept = PrefixCacheIndex(bus, registry, RefusedMessages())
    worker = SimulatedWorker(bus, "a")
    worker.kept = told("a", whole=True, links={"00": "memory"})
    await worker.join()
    await kept._query(worker.id)
    assert not kept.workers_caching("00") and kept.links(worker.id) == {}
    registry.on_worker_event(WorkerEvent(type="joined", worker=report("a")), 0.0)
    await kept._query(worker.id)
    assert list(kept.workers_caching("00")) == ["a"]


KEEPING = [
    EngineStatus(index=0, state="running", kv_memory=PrefixCacheStatus(memory_limit_bytes=1))
]


def expecting(
    clock: Clock, *messages: KeptPrefixes, engines: list[EngineStatus] = KEEPING
) -> PrefixCacheIndex:
    """Of workers whose engines have a KV memory."""
    registry = NodeRegistry(silence_limit_s=60)
    kept = PrefixCacheIndex(Bus.__new__(Bus), registry, RefusedMessages(), clock)
    for name in WORKERS:
        event = WorkerEvent(type="joined", worker=report(name, engines=engines))
        registry.on_worker_event(event, 0.0)
    for message in messages:
        kept.apply_report(message)
    return kept


def test_what_a_worker_computed_is_expected_to_be_kept_until_it_says_so() -> None:
    clock = Clock()
    kept = expecting(clock, told("a"))
    kept.expect_cached(WORKERS[0], ["00", "01", "02"])
    assert set(kept.links(WORKERS[0])) == {"00", "01", "02"} and list(
        kept.workers_caching("01")
    ) == ["a"]
    kept.apply_report(told("a", 2, links={"00": "disk"}, gone=["01"]))
    assert kept.links(WORKERS[0]) == {"00": "disk", "02": "memory"}
    clock.now += 11
    assert kept.links(WORKERS[0]) == {"00": "disk"} and not kept.workers_caching("02")
    both_ways(kept)


def test_what_is_told_before_is_not_forgotten_for_being_expected() -> None:
    clock = Clock()
    kept = expecting(clock, told("a", links={"00": "disk"}))
    kept.expect_cached(WORKERS[0], ["00", "01"])
    clock.now += 11
    assert kept.links(WORKERS[0]) == {"00": "disk"}


def test_what_is_expected_again_is_expected_longer() -> None:
    clock = Clock()
    kept = expecting(clock, told("a"))
    for _ in range(2):
        kept.expect_cached(WORKERS[0], ["00", "01"])
        clock.now += 8
    assert set(kept.links(WORKERS[0])) == {"00", "01"}
    clock.now += 3
    assert kept.links(WORKERS[0]) == {}


@pytest.mark.parametrize(
    ("worker", "engines"),
    [("a", []), ("a", [EngineStatus(index=0, state="running")]), ("b", KEEPING)],
)
def test_nothing_is_expected_of_who_keeps_nothing_or_was_not_heard_yet(
    worker: str, engines: list[EngineStatus]
) -> None:
    kept = expecting(Clock(), told("a"), engines=engines)
    kept.expect_cached(WorkerId(worker), ["00"])
    assert not kept.workers_caching("00") and kept.links(WorkerId(worker)) == {}


_SOME = st.lists(st.sampled_from(LINKS), max_size=4)
_TOLD = st.builds(
    told,
    st.sampled_from(WORKERS),
    st.integers(1, 5),
    boot=st.sampled_from(["b1", "b1", "b2"]),
    whole=st.booleans(),
    links=st.dictionaries(st.sampled_from(LINKS), st.sampled_from(["memory", "disk"])),
    gone=_SOME,
)
_EXPECTED = st.tuples(st.sampled_from(WORKERS), _SOME, st.floats(0, 12))
_GONE = st.tuples(st.sampled_from(WORKERS), st.sampled_from([BootId("b1"), BootId("b2")]))


@given(st.lists(st.one_of(_TOLD, _GONE, _EXPECTED), max_size=30))
def test_whatever_is_told_the_index_is_the_links_the_other_way_round(
    words: Iterable[KeptPrefixes | tuple[WorkerId, BootId] | tuple[WorkerId, list[str], float]],
) -> None:
    clock = Clock()
    kept = expecting(clock)
    for word in words:
        match word:
            case KeptPrefixes():
                kept.apply_report(word)
            case (worker, boot_id):
                kept.forget(worker, boot_id)
            case (worker, links, seconds):
                kept.expect_cached(worker, links)
                clock.now += seconds
        both_ways(kept)
