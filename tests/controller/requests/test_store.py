"""All requests that the leader answers for."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.requests import store as store_module
from controller.requests.request import TrackedRequest
from controller.requests.store import RETAINED_AFTER_END_S, RequestStore
from shared.ids import ClientName, RequestId
from tests.controller.values import ADA, request

BOB = ClientName("bob")


def _end(store: RequestStore, one: TrackedRequest, now: float) -> None:
    one.finish(succeeded=True, code="", now=now)
    store.end(one)


def test_requests_are_found_by_client_and_id() -> None:
    store, one = RequestStore(), request()
    store.add(one)
    assert store.get((ADA, RequestId("r"))) is one
    assert store.get((BOB, RequestId("r"))) is None


def test_those_that_have_not_ended_are_told_in_the_order_of_their_coming() -> None:
    store, (one, two, three) = RequestStore(), [request(name) for name in "abc"]
    for each in (one, two, three):
        store.add(each)
    _end(store, two, 0.0)
    assert (list(store), len(store)) == ([one, three], 2)


def test_they_may_end_while_they_are_told() -> None:
    store = RequestStore()
    for name in "abc":
        store.add(request(name))
    for each in store:
        _end(store, each, 0.0)
    assert len(store) == 0


def test_how_many_a_client_has_is_counted() -> None:
    store, (one, two) = RequestStore(), [request(name) for name in "ab"]
    two.client = BOB
    assert store.count(ADA) == 0
    for each in (one, two):
        store.add(each)
    assert (store.count(ADA), store.count(BOB)) == (1, 1)
    _end(store, one, 0.0)
    store.remove(two)
    assert (store.count(ADA), store.count(BOB), dict(store._by_client)) == (0, 0, {})


def test_parts_of_a_list_count_with_it() -> None:
    store, (whole, part) = RequestStore(), [request(name) for name in "ab"]
    part.part_of = whole.request_id
    for each in (whole, part):
        store.add(each)
    assert store.count(ADA) == 1
    store.remove(part)
    assert (len(store), store.count(ADA)) == (1, 1)


def test_ended_ones_are_remembered_for_a_while_and_others_for_good() -> None:
    store, ended, running = RequestStore(), request("ended"), request("running")
    for each in (ended, running):
        store.add(each)
    _end(store, ended, 5.0)
    store.forget_old(5.0 + RETAINED_AFTER_END_S)
    assert store.get(ended.key) is ended
    store.forget_old(5.1 + RETAINED_AFTER_END_S)
    assert store.get(ended.key) is None and store.get(running.key) is running


def test_of_a_client_with_many_that_ended_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "_MAX_ENDED_PER_CLIENT", 3)
    store, other = RequestStore(), request("other")
    other.client = BOB
    many = [request(name) for name in "abcde"]
    for each in (other, *many):
        store.add(each)
        _end(store, each, 0.0)
    assert [store.get(each.key) is each for each in many] == [False, False, True, True, True]
    assert store.get(other.key) is other


def test_of_an_ended_request_its_contents_go() -> None:
    store, one = RequestStore(), request(prompt="a long prompt")
    store.add(one)
    _end(store, one, 0.0)
    assert store.get(one.key) is one and one.request is None


def test_one_that_comes_for_another_of_the_same_id_takes_its_place() -> None:
    store, first, second = RequestStore(), request(), request()
    store.add(first)
    store.add(second)
    assert (list(store), store.count(ADA), store.get(first.key)) == ([second], 1, second)
    store.remove(first)
    assert store.get(second.key) is second


def test_the_end_of_one_that_was_replaced_does_not_end_the_other() -> None:
    store, first, second = RequestStore(), request(), request()
    store.add(first)
    _end(store, first, 0.0)
    store.add(second)
    store.forget_old(1.0 + RETAINED_AFTER_END_S)
    assert store.get(second.key) is second and list(store) == [second]
    _end(store, first, 2.0)
    assert list(store) == [second]


class StoreBesideAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = RequestStore()
        self.all: list[TrackedRequest] = []
        self.known: dict[str, TrackedRequest] = {}
        self.now = 0.0

    @rule(name=st.sampled_from("abc"))
    def add(self, name: str) -> None:
        one = request(name)
        one.memory_bytes = 1000 + len(self.all)
        self.all.append(one)
        self.known.pop(name, None)
        self.known[name] = one
        self.store.add(one)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.all))
        if not one.ended:
            _end(self.store, one, self.now)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        one: TrackedRequest = data.draw(st.sampled_from(self.all))
        self.store.remove(one)
        if self.known.get(one.request_id) is one:
            del self.known[one.request_id]

    @rule(seconds=st.sampled_from([1.0, 20.0, 40.0]))
    def forget_old(self, seconds: float) -> None:
        self.now += seconds
        self.store.forget_old(self.now)
        self.known = {
            name: one
            for name, one in self.known.items()
            if one.ended_at is None or self.now - one.ended_at <= RETAINED_AFTER_END_S
        }

    @invariant()
    def both_know_the_same(self) -> None:
        assert self.store._requests == {one.key: one for one in self.known.values()}
        active = [one for one in self.known.values() if not one.ended]
        assert list(self.store) == active and self.store.count(ADA) == len(active)
        memory_bytes = sum(one.memory_bytes for one in active)
        assert self.store.memory_bytes() == self.store.memory_bytes(ADA) == memory_bytes


test_the_store_never_differs_from_a_list = StoreBesideAList.TestCase
