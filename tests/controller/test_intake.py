"""What a client sent becomes an owned request, or an error that says what is wrong."""

import json
from typing import Any

import pytest

from controller.intake import may_answer, read_request, rejection
from controller.owned_request import OwnedRequest
from shared.bus import Message
from shared.errors import InvalidRequest, RequestError
from shared.ids import ModelId, SkillName
from shared.messages.request import default_seed
from tests.controller.values import ADA

SKILLS = {
    SkillName("chat"): [ModelId("small"), ModelId("large")],
    SkillName("code"): [ModelId("coder")],
}


def message(subject: str = "mlx.infer.ada.chat", reply: str = "_INBOX.x", **body: Any) -> Message:
    return Message(subject, reply, json.dumps({"prompt": "x", **body}).encode())


def read(sent: Message, max_bytes: int = 10_000) -> OwnedRequest:
    return read_request(sent, SKILLS, max_bytes=max_bytes)


def refusal(sent: Message, max_bytes: int = 10_000) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(sent, max_bytes)
    return caught.value


def test_client_skill_reply_and_models_are_taken() -> None:
    request = read(message(request_id="mine"))
    assert (request.client, request.skill, request.inboxes[0]) == ("ada", "chat", "_INBOX.x")
    assert (request.request_id, request.models) == ("mine", ["small", "large"])
    assert (request.state, request.attempt) == ("accepted", -1)


def test_a_named_model_of_the_skill_is_the_only_one() -> None:
    assert read(message(model="large")).models == ["large"]


def test_without_an_id_each_request_gets_its_own() -> None:
    first, second = read(message()), read(message())
    assert first.request_id != second.request_id


def test_the_seed_is_the_given_one_or_comes_from_client_and_id() -> None:
    assert read(message(seed=0)).seed == 0
    request = read(message(request_id="mine"))
    assert request.seed == default_seed(ADA, request.request_id)
    assert read(message(subject="mlx.infer.bob.chat", request_id="mine")).seed != request.seed


@pytest.mark.parametrize(
    ("sent", "code", "param", "words"),
    [
        (message(subject="mlx.infer.ada.draw"), "unknown_skill", None, "there are: chat, code"),
        (message(model="coder"), "unknown_model", "model", "it has: small, large"),
        (message(temperature=9), "invalid_request", "temperature", "temperature: "),
        (message(subject="mlx.infer.a$a.chat"), "invalid_request", None, "client in the subject"),
        (message(subject="mlx.infer.ada.ch@t"), "invalid_request", None, "skill in the subject"),
        (message(subject=f"mlx.infer.{'x' * 65}.chat"), "invalid_request", None, "{1,64}"),
    ],
)
def test_what_is_wrong_is_said_with_code_and_field(
    sent: Message, code: str, param: str | None, words: str
) -> None:
    error = refusal(sent)
    assert (error.code, error.param, error.retryable) == (code, param, False)
    assert words in error.message


def test_the_size_limit_is_to_the_byte() -> None:
    sent = message()
    size = len(sent.payload)
    assert read(sent, max_bytes=size).client == ADA
    error = refusal(sent, max_bytes=size - 1)
    assert error.code == "payload_too_large"
    assert f"{size} bytes; at most {size - 1}" in error.message


def test_only_inboxes_of_the_client_are_answered() -> None:
    assert may_answer(message(reply="_INBOX.ada.x"), ADA, strict=True)
    assert not may_answer(message(reply="_INBOX.bob.x"), ADA, strict=True)


def test_a_rejection_names_the_id_if_there_is_one_and_carries_the_error() -> None:
    error = InvalidRequest("n: too many", param="n")
    end = rejection(b'{"request_id": "mine", "n": 999}', error)
    assert (end.request_id, end.attempt, end.worker) == ("mine", 0, None)
    assert (end.error.code, end.error.param, end.error.message) == (
        "invalid_request", "n", "n: too many",
    )  # fmt: skip
    assert rejection(b"nonsense", error).request_id is None
