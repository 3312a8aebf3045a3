"""A list of prompts as requests of their own, by value."""

import time

import pytest

from controller.prompt_list import fails_all, first_part, is_list, of_prompt, part_of, passes
from shared.messages.codec import decode, encode
from shared.messages.dispatch import ForwardedRequest, choice_seed
from shared.messages.stream import StreamError
from tests.controller.values import owned

INBOX = "_INBOX.c"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("x", False), ([1, 2], False), (["x"], False), ([[1, 2]], False),
     (["x", "y"], True), ([[1], [2, 3]], True)],
)  # fmt: skip
def test_a_list_has_two_prompts_or_more(prompt: object, expected: bool) -> None:
    assert is_list(owned(prompt=prompt)) is expected


def test_a_conversation_is_no_list() -> None:
    request = owned(prompt=None, messages=[{"role": "user", "content": "x"}])
    assert not is_list(request) and first_part(request) is request


@pytest.mark.parametrize("prompts", [["a", "b", "c"], [[1], [2, 3], [4]]])
def test_each_prompt_is_asked_with_all_that_the_list_asks(prompts: list[object]) -> None:
    whole = owned(prompt=prompts, n=2, max_tokens=7, temperature=0.5, priority="low", logprobs=1)
    for number, prompt in enumerate(prompts):
        part = part_of(whole, number, INBOX)
        assert part.request.prompts == [prompt]
        assert (part.client, part.skill, part.models) == (whole.client, whole.skill, whole.models)
        assert (part.part_of, part.inboxes) == (whole.request_id, [INBOX])
        asked = part.request.model_copy(update={"prompt": prompts})
        assert asked == whole.request.model_copy(update={"multiplex": True})


def test_each_part_has_an_id_of_its_own_unless_it_is_asked_for_again() -> None:
    whole = owned(prompt=["a", "b"])
    first, second = part_of(whole, 0, INBOX), part_of(whole, 1, INBOX)
    assert len({whole.request_id, first.request_id, second.request_id}) == 3
    again = part_of(whole, 0, INBOX, first.request_id)
    assert again.key == first.key
    assert again.request.fingerprint() == first.request.fingerprint()


def test_choices_of_a_part_have_the_seeds_that_they_have_in_the_list() -> None:
    whole = owned(prompt=["a", "b", "c"], n=3)
    seeds = [
        choice_seed(part_of(whole, prompt, INBOX).seed, choice)
        for prompt in range(3)
        for choice in range(3)
    ]
    assert seeds == [choice_seed(whole.seed, number) for number in range(9)]
    assert part_of(whole, 0, INBOX).seed == whole.seed


def test_a_part_streams_and_is_no_turn_of_a_session() -> None:
    whole = owned(prompt=["a", "b"], stream=False, session_id="s", affinity="a", request_id="mine")
    part = part_of(whole, 1, INBOX)
    assert part.request.stream and part.request.multiplex
    assert (part.session, part.affinity, part.request.request_id) == (None, None, None)
    assert whole.session is not None


def test_a_part_has_the_time_that_the_list_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = owned(prompt=["a", "b"], timeout_ms=1000)
    now = whole.accepted_at + 0.75
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert part_of(whole, 1, INBOX).deadline == pytest.approx(whole.deadline, abs=1e-6)


def test_a_part_is_a_request_that_others_can_read() -> None:
    part = part_of(owned(prompt=[[1, 2], [3]], n=2, stop=["a"]), 1, INBOX)
    message = ForwardedRequest(
        client=part.client, skill=part.skill, reply=INBOX, elapsed_ms=0.0, request=part.request
    )
    assert decode(ForwardedRequest, encode(message)).request == part.request


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StreamError("worker_lost", "w1 is gone"), "prompt.2: w1 is gone"),
        (StreamError("invalid_request", "prompt: token id 9", "prompt"), "prompt.2: token id 9"),
        (StreamError("invalid_request", "no tokens", "prompt"), "prompt.2: no tokens"),
        (StreamError("invalid_request", "stop: too long", "stop"), "stop: too long"),
    ],
)
def test_an_error_says_which_prompt_it_is_about(error: StreamError, message: str) -> None:
    named = of_prompt(error, 2)
    assert (named.message, named.code, named.param) == (message, error.code, error.param)


def test_what_is_wrong_with_the_request_fails_all_of_it() -> None:
    assert fails_all(StreamError.of("invalid_request", "token id 9 is outside", "prompt"))
    for code in ("context_length_exceeded", "worker_lost", "request_failed", "deadline_exceeded"):
        assert not fails_all(StreamError.of(code, "it failed"))


def test_who_found_no_room_comes_again() -> None:
    for code in ("queue_full", "memory_pressure", "circuit_open", "client_gone"):
        assert passes(StreamError.of(code, "not now"))
    for code in ("worker_lost", "no_worker", "context_length_exceeded", "draining"):
        assert not passes(StreamError.of(code, "it failed"))
