"""A request survives its way to a worker and to the controller that owns it."""

import orjson
import pytest

from shared.ids import ClientName, ControllerId, ModelId, RequestId, SkillName
from shared.messages.codec import decode, encode
from shared.messages.dispatch import (
    Continuation,
    Dispatch,
    DispatchBatch,
    ForwardedRequest,
    choice_seed,
    dispatch_json,
    encode_batch,
)
from shared.messages.request import InferenceRequest, parse_request

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


def forwarded(request: InferenceRequest) -> InferenceRequest:
    """The request as it arrives after its one hop."""
    message = ForwardedRequest(
        client=ADA, skill=CHAT, reply="_INBOX.x", elapsed_ms=1.5, request=request
    )
    arrived = decode(ForwardedRequest, encode(message))
    assert (arrived.client, arrived.skill, arrived.reply) == (ADA, CHAT, "_INBOX.x")
    return arrived.request


@pytest.mark.parametrize("body", BODIES)
def test_a_dispatched_request_arrives_as_it_was(body: dict[str, object]) -> None:
    dispatch = Dispatch(
        request_id=RequestId("r"),
        client=ADA,
        skill=CHAT,
        model=ModelId("demo"),
        attempt=1,
        inboxes=["_INBOX.x"],
        seed=5,
        elapsed_ms=0.25,
        request=parse_request(orjson.dumps(body)),
        resume=Continuation(token_ids={0: [1, 2]}, text_sent={0: 3}),
    )
    batch = DispatchBatch(owner=ControllerId("c"), dispatches=[dispatch])
    assert decode(DispatchBatch, encode(batch)) == batch
    as_written = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    for known in (None, as_written):
        arrived = decode(
            DispatchBatch, encode_batch(ControllerId("c"), [dispatch_json(dispatch, known)])
        )
        assert arrived == batch
        assert arrived.dispatches[0].request.fingerprint() == dispatch.request.fingerprint()


def test_fields_of_a_newer_controller_are_ignored_in_a_request_too() -> None:
    request = parse_request(b'{"prompt": "x"}')
    message = ForwardedRequest(
        client=ADA, skill=CHAT, reply="_INBOX.x", elapsed_ms=1.5, request=request
    )
    newer = orjson.loads(encode(message))
    newer["hops"] = 1
    newer["request"]["thinking"] = {"budget": 1}
    assert decode(ForwardedRequest, orjson.dumps(newer)) == message


@pytest.mark.parametrize("body", BODIES)
def test_a_forwarded_request_asks_for_the_same_and_keeps_its_fingerprint(
    body: dict[str, object],
) -> None:
    request = parse_request(orjson.dumps(body))
    arrived = forwarded(request)
    assert arrived == request
    assert arrived.fingerprint() == request.fingerprint()


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
