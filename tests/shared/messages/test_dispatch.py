"""A request survives its way to a worker, and to the next leader."""

from typing import Any

import orjson
import pytest

from shared.codec import decode, encode
from shared.ids import ClientName, ControllerId, ModelId, RequestId, SkillName
from shared.messages.dispatch import (
    Continuation,
    Dispatch,
    DispatchBatch,
    Transfer,
    choice_seed,
    dispatch_json,
    encode_batch,
)
from shared.messages.request_parsing import parse_request

ADA, CHAT = ClientName("ada"), SkillName("chat")
BODIES: list[dict[str, object]] = [
    {"prompt": "x"},
    {"prompt": [[1, 2], [3]], "n": 2, "stop": ["a"], "logit_bias": {"7": 1.5}},
    {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "requires": {"labels": {"room": "2"}},
        "resume": {"token_ids": [4], "text_sent": 1},
        "priority": "urgent",
    },
]


def dispatched(body: object, **fields: Any) -> Dispatch:
    return Dispatch(
        request_id=RequestId("r"),
        client=ADA,
        skill=CHAT,
        model=ModelId("demo"),
        attempt=1,
        inboxes=["_INBOX.x"],
        seed=5,
        elapsed_ms=0.25,
        request=parse_request(orjson.dumps(body)),
        **fields,
    )


def fields_of(dispatch: Dispatch) -> dict[str, object]:
    """Those that are not None, but for its request."""
    return {name: value for name, value in dispatch if value is not None and name != "request"}


@pytest.mark.parametrize("body", BODIES)
def test_a_dispatched_request_arrives_as_it_was(body: dict[str, object]) -> None:
    dispatch = dispatched(
        body, resume=Continuation(token_ids={0: [1, 2]}, text_sent={0: 3}), retries=1
    )
    batch = DispatchBatch(owner=ControllerId("c"), term=4, dispatches=[dispatch])
    assert decode(DispatchBatch, encode(batch)) == batch
    for as_written in (orjson.dumps(body, option=orjson.OPT_INDENT_2), encode(dispatch.request)):
        told = dispatch_json(fields_of(dispatch), as_written)
        arrived = decode(DispatchBatch, encode_batch(ControllerId("c"), 4, [told]))
        assert arrived == batch
        (one,) = arrived.dispatches
        assert one.body_fingerprint == dispatch.request.fingerprint()


def test_a_turn_with_all_that_was_said_before_keeps_the_fingerprint_of_its_own_body() -> None:
    turn = {"role": "user", "content": "And then?"}
    alone = dispatched({"messages": [turn]})
    fingerprint = alone.body_fingerprint
    before = {"role": "user", "content": "Hello"}
    whole = dispatched({"messages": [before, turn]}, fingerprint=fingerprint)
    assert whole.request.fingerprint() != fingerprint
    assert decode(Dispatch, encode(whole)).body_fingerprint == fingerprint


def test_fields_of_a_newer_controller_are_ignored_in_a_request_too() -> None:
    dispatch = dispatched({"prompt": "x"})
    message = DispatchBatch(owner=ControllerId("c"), term=1, dispatches=[dispatch])
    newer = orjson.loads(encode(message))
    newer["hops"] = 1
    newer["dispatches"][0]["request"]["thinking"] = {"budget": 1}
    assert decode(DispatchBatch, orjson.dumps(newer)) == message


@pytest.mark.parametrize("body", BODIES)
def test_a_transferred_request_asks_for_the_same_and_keeps_its_fingerprint(
    body: dict[str, object],
) -> None:
    dispatch = dispatched(body, resume=Continuation(token_ids={0: [1]}), migrations=1)
    transfer = Transfer(controller=ControllerId("c"), term=2, requests=[dispatch])
    arrived = decode(Transfer, encode(transfer))
    assert arrived == transfer
    (one,) = arrived.requests
    assert one.body_fingerprint == dispatch.request.fingerprint()


@pytest.mark.parametrize("seed", [0, 5, 2**53 - 1])
def test_choices_have_unrelated_seeds_of_64_bits_and_the_first_one_that_of_the_request(
    seed: int,
) -> None:
    seeds = [choice_seed(seed, choice) for choice in range(128)]
    assert seeds[0] == seed and len(set(seeds)) == 128
    assert all(0 <= each < 2**64 for each in seeds)


def test_a_prompt_of_a_list_on_its_own_goes_on_counting_where_the_one_before_ended() -> None:
    seed, n = 7, 3
    for prompt in range(4):
        first = choice_seed(seed, prompt * n)
        alone = [choice_seed(first, choice) for choice in range(n)]
        assert alone == [choice_seed(seed, prompt * n + choice) for choice in range(n)]
