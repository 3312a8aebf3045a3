"""What the requests of one client, and those of all, may take of the leader's memory."""

import json
from typing import Any

import pytest

from controller.intake.validation import read_request
from controller.lifecycle.client_limits import limit_exceeded
from controller.requests.events import PromptListEnded, PromptListGrew
from controller.requests.request import TrackedRequest
from controller.requests.store import RequestStore
from shared.bus import IncomingMessage
from shared.ids import ClientName, ModelId, RequestId, SkillName
from shared.messages.stream import ErrorDetails, FailedMessage
from shared.settings.nats import ClientIsolationSettings
from tests.controller.requests.driven import Driven
from tests.controller.values import ADA, request

MIB = 1024 * 1024
LIMITS = ClientIsolationSettings(strict_inbox=True, max_request_mb_per_client=10, max_request_mb=25)
OPEN = LIMITS.model_copy(update={"strict_inbox": False})


def sized(name: str, client: str, mebibytes: float) -> TrackedRequest:
    one = request(name)
    one.client, one.memory_bytes = ClientName(client), int(mebibytes * MIB)
    return one


def code(store: RequestStore, new: TrackedRequest, limits: ClientIsolationSettings) -> str | None:
    error = limit_exceeded(store, new, limits)
    assert error is None or (error.retryable and error.retry_after_ms)
    return error.code if error is not None else None


def test_one_client_fills_its_own_share_and_not_that_of_others() -> None:
    store = RequestStore()
    first = sized("a", "eve", 9)
    store.add(first)
    assert code(store, sized("b", "eve", 1), LIMITS) is None
    assert code(store, sized("b", "eve", 2), LIMITS) == "rate_limit_exceeded"
    assert code(store, sized("b", "ada", 2), LIMITS) is None
    first.finish(succeeded=True, code="", now=1.0)
    store.end(first)
    assert (store.memory_bytes(), store.memory_bytes(ClientName("eve"))) == (0, 0)
    assert code(store, sized("b", "eve", 2), LIMITS) is None


def test_what_is_kept_of_the_answer_to_a_list_counts_until_its_end() -> None:
    driven = Driven("w1", strict=True)
    driven.ask("list", prompt=["a", "b"])
    store, key = driven.machine._store, (ADA, RequestId("list"))
    before = store.memory_bytes(ADA)
    driven.on(PromptListGrew(key, 5 * MIB))
    driven.on(PromptListGrew(key, 2 * MIB))
    assert store.memory_bytes(ADA) == before + 7 * MIB
    driven.on(
        PromptListEnded(key, FailedMessage(key[1], 1, None, ErrorDetails.of("internal_error", "")))
    )
    driven.on(PromptListGrew(key, MIB))
    assert store.memory_bytes(ADA) == 0


@pytest.mark.parametrize("limits", [LIMITS, OPEN])
def test_all_clients_together_have_a_bound_too(limits: ClientIsolationSettings) -> None:
    store = RequestStore()
    for name in ("ada", "bob", "eve"):
        store.add(sized(name, name, 8))
    assert code(store, sized("x", "dan", 1), limits) is None
    assert code(store, sized("x", "dan", 2), limits) == "queue_full"


def test_where_clients_are_not_known_one_may_have_all() -> None:
    store = RequestStore()
    store.add(sized("a", "local", 20))
    assert code(store, sized("b", "local", 4), OPEN) is None


def test_turns_of_one_session_wait_only_as_long_as_they_have_room() -> None:
    driven = Driven("w1", strict=True)
    for number in range(40):
        turn = request(f"turn-{number}", session_id="s")
        turn.memory_bytes = 10 * MIB
        driven._publish(turn, "_INBOX.s")
    ends = [each for each in driven.told("_INBOX.s") if isinstance(each, FailedMessage)]
    assert {end.error.code for end in ends} == {"rate_limit_exceeded"}
    assert driven.machine.active == 25, "of 256 MB"
    assert len(ends) == 15


def test_a_request_weighs_more_than_its_bytes_if_it_has_many_messages() -> None:
    def weight(body: object) -> float:
        message = IncomingMessage("mlx.infer.ada.chat", "_INBOX.x", json.dumps(body).encode())
        skills = {SkillName("chat"): [ModelId("demo")]}
        read = read_request(message, skills, max_bytes=2 * MIB, now=1.0)
        return read.memory_bytes / len(message.payload)

    assert weight({"prompt": "x" * MIB}) < 2.1
    assert weight({"messages": [{"role": "user", "content": ""}] * 8000}) > 15


def test_requests_that_ended_have_no_weight_and_none_may_come_back_without_room() -> None:
    """Those that a worker ended without an answer run again if their client says less of them."""
    driven = Driven("w1", strict=True)
    names = [f"r-{number}" for number in range(30)]
    for name in names:
        driven._publish(_heavy(name, resume={"token_ids": [0]}), "_INBOX.s")
        driven.pass_time(0.01)
        sent = driven.next_sent()
        driven.accept(sent)
        driven.finish(sent)
    assert driven.machine.active == 0
    for name in names:
        driven._publish(_heavy(name), "_INBOX.again")
    ends = [each for each in driven.told("_INBOX.again") if isinstance(each, FailedMessage)]
    assert {end.error.code for end in ends} == {"rate_limit_exceeded"}
    assert (driven.machine.active, len(ends)) == (25, 5), "of 256 MB"


def _heavy(name: str, **fields: Any) -> TrackedRequest:
    one = request(name, **fields)
    one.memory_bytes = 10 * MIB
    return one
