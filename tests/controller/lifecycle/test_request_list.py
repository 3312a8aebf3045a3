"""Which requests of the leader are listed, and in which order."""

from typing import Any

import pytest

from controller.lifecycle.request_list import list_requests
from controller.requests.request import State, TrackedRequest
from shared.ids import ClientName, ControllerId, RequestId, WorkerId
from shared.messages.request_list import RequestList, RequestListQuery
from tests.controller.values import ADA, request

_NOW = 12.5


def _in(state: State, request_id: str, **fields: Any) -> TrackedRequest:
    one = request(request_id, **fields)
    one.state = state
    return one


def _listed(*requests: TrackedRequest, **query: Any) -> RequestList:
    return list_requests(requests, RequestListQuery(**query), ControllerId("c-1"), _NOW)


def _ids(listed: RequestList) -> list[str]:
    return [each.request_id for each in listed.requests]


def test_the_running_ones_come_first_each_group_in_the_order_of_arrival() -> None:
    listed = _listed(
        _in("queued", "a"), _in("running", "b"), _in("waiting", "c"), _in("running", "d"),
        _in("delegated", "e"),
    )  # fmt: skip
    assert _ids(listed) == ["b", "d", "a", "c", "e"]
    assert listed.states == {"queued": 1, "running": 2, "waiting": 1, "delegated": 1}
    assert (listed.total, listed.controller, listed.message) == (5, "c-1", None)


def test_at_most_as_many_as_asked_for_are_listed_but_all_are_counted() -> None:
    many = [_in("queued", f"q{number}") for number in range(250)] + [_in("running", "last")]
    listed = _listed(*many, limit=3)
    assert _ids(listed) == ["last", "q0", "q1"]
    assert (listed.total, listed.states) == (251, {"queued": 250, "running": 1})
    assert len(_listed(*many).requests) == 200


def test_of_one_client_only_its_own_are_listed_and_counted() -> None:
    bobs = _in("running", "b")
    bobs.client = ClientName("bob")
    both = (_in("queued", "a"), bobs)
    assert _ids(_listed(*both, client="bob")) == ["b"]
    assert _listed(*both, client="ada").states == {"queued": 1}
    assert _listed(*both, client="eve").total == 0
    assert _ids(_listed(*both)) == ["b", "a"]


def test_the_parts_of_a_list_are_not_listed() -> None:
    part = _in("running", "part")
    part.part_of = RequestId("list")
    listed = _listed(_in("delegated", "list"), part)
    assert (_ids(listed), listed.total, listed.states) == (["list"], 1, {"delegated": 1})


def test_a_running_request_has_every_field() -> None:
    one = _in("running", "r", priority="urgent", session_id="talk", now=10.0)
    one.worker, one.attempt, one.failures.migrations = WorkerId("mac"), 1002, 1
    one.failures.workers = {WorkerId("mini"), WorkerId("air")}
    one.reason = "every worker was full"
    (summary,) = _listed(one).requests
    assert summary.model_dump() == {
        "client": ADA, "request_id": "r", "skill": "chat", "model": "demo", "priority": "high",
        "state": "running", "reason": None, "worker": "mac", "attempt": 1002, "migrations": 1,
        "failed_workers": ["air", "mini"], "tokens": 0, "elapsed_ms": 2500.0, "session_id": "talk",
    }  # fmt: skip


@pytest.mark.parametrize("state", ["queued", "backing_off", "waiting", "fetching"])
def test_only_a_request_that_no_worker_has_says_why(state: State) -> None:
    one = _in(state, "r")
    one.reason = "every worker is full"
    (summary,) = _listed(one).requests
    assert (summary.state, summary.reason, summary.worker) == (state, "every worker is full", None)


def test_a_client_that_gave_only_an_affinity_has_no_session() -> None:
    (summary,) = _listed(_in("queued", "r", affinity="s")).requests
    assert summary.session_id is None
