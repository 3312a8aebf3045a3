"""What a client sent becomes a request, or an error that says what is wrong; a controller that may
lead in a moment holds what comes."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller.intake.request_handler import ClientMessageHandler
from controller.intake.validation import read_request, rejection
from controller.requests.request import TrackedRequest
from shared.bus import IncomingMessage
from shared.errors import BusTimeout, InvalidRequest, RequestError
from shared.ids import ModelId, SkillName
from shared.messages.dispatch import default_seed
from shared.messages.request_parsing import RequestHeader
from shared.settings import ClusterSettings
from tests.controller.inbox import failed
from tests.controller.running import Running
from tests.controller.values import ADA

pytestmark = pytest.mark.anyio

SKILLS = {
    SkillName("chat"): [ModelId("small"), ModelId("large")],
    SkillName("code"): [ModelId("coder")],
}


def message(
    subject: str = "mlx.infer.ada.chat", reply: str = "_INBOX.x", **body: Any
) -> IncomingMessage:
    return IncomingMessage(subject, reply, json.dumps({"prompt": "x", **body}).encode())


def read(sent: IncomingMessage, max_bytes: int = 10_000) -> TrackedRequest:
    return read_request(sent, SKILLS, max_bytes=max_bytes, now=7.0)


def why_rejected(sent: IncomingMessage, max_bytes: int = 10_000) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(sent, max_bytes)
    return caught.value


def test_client_skill_reply_and_models_are_taken() -> None:
    sent = message(request_id="mine")
    request = read(sent)
    assert (request.client, request.skill, request.inboxes) == ("ada", "chat", ["_INBOX.x"])
    assert (request.request_id, request.models) == ("mine", ["small", "large"])
    assert (request.state, request.attempt, request.arrived_at) == ("waiting", 0, 7.0)
    assert request.payload == sent.payload


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
    sent: IncomingMessage, code: str, param: str | None, words: str
) -> None:
    error = why_rejected(sent)
    assert (error.code, error.param, error.retryable) == (code, param, False)
    assert words in error.message


def test_the_size_limit_is_to_the_byte() -> None:
    sent = message()
    size = len(sent.payload)
    assert read(sent, max_bytes=size).client == ADA
    error = why_rejected(sent, max_bytes=size - 1)
    assert error.code == "payload_too_large"
    assert f"{size} bytes; at most {size - 1}" in error.message


def test_a_rejection_names_the_id_if_there_is_one_and_carries_the_error() -> None:
    error = InvalidRequest("n: too many", param="n")
    end = rejection(RequestHeader.of(b'{"request_id": "mine", "n": 999}'), error, 2000)
    assert (end.request_id, end.attempt, end.worker) == ("mine", 2000, None)
    assert (end.error.code, end.error.param, end.error.message) == (
        "invalid_request", "n", "n: too many",
    )  # fmt: skip
    assert rejection(RequestHeader.of(b"nonsense"), error, 0).request_id is None


# Holding.

Serve = Callable[[], Awaitable[None]]


@pytest.fixture
async def handler(cluster: Running) -> ClientMessageHandler:
    """That of a controller whose leader is not there yet."""
    handler = cluster.controller._handler
    await handler.close()
    await handler.hold()
    await cluster.settle()
    return handler


@pytest.fixture
def serve(cluster: Running) -> Serve:
    """The leader is there."""
    leader = cluster.controller._leader
    assert leader is not None
    return lambda: cluster.controller._handler.serve(leader)


async def test_what_came_before_the_leader_is_served_by_it_in_order(
    cluster: Running, handler: ClientMessageHandler, serve: Serve
) -> None:
    worker = await cluster.worker("w1")
    for name in ("a", "b"):
        await cluster.ask(request_id=name)
    rejected = await cluster.ask(temperature=9)
    await cluster.settle()
    assert worker.unread == (0, 0)
    await serve()
    assert [(await worker.next_dispatch()).request_id for _ in range(2)] == ["a", "b"]
    assert failed(await rejected.next()).error.param == "temperature"
    await cluster.begin(request_id="c")


async def test_a_question_that_came_before_the_leader_is_answered_by_it(
    cluster: Running, handler: ClientMessageHandler, serve: Serve
) -> None:
    with pytest.raises(BusTimeout):
        await cluster.bus.request("mlx.health.cluster", b"", timeout_s=0.1)
    inbox = cluster.bus.new_inbox()
    answers: list[IncomingMessage] = []

    async def take(answer: IncomingMessage) -> None:
        answers.append(answer)

    await cluster.bus.subscribe(inbox, take)
    await cluster.bus.publish("mlx.request.local.status", b'{"request_id": "r"}', reply=inbox)
    await cluster.settle()
    assert answers == []
    await serve()
    await cluster.until(lambda: len(answers) == 1)


async def test_what_was_held_too_long_is_not_served(
    cluster: Running, handler: ClientMessageHandler, serve: Serve
) -> None:
    """Its client has published it again since, or given it up."""
    worker = await cluster.worker("w1")
    for name in ("old", "new"):
        await cluster.ask(request_id=name)
        await cluster.settle()
    held = [handler._held.pop() for _ in range(len(handler._held))]
    for each, later_s in zip(held, (-60.0, 0.0), strict=True):
        handler._held.add(each._replace(held_at=each.held_at + later_s))
    await serve()
    assert (await worker.next_dispatch()).request_id == "new"
    await cluster.settle()
    assert worker.unread == (0, 0)


async def test_what_is_held_in_vain_is_dropped(
    cluster: Running, handler: ClientMessageHandler, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.intake.request_handler._HOLD_S", 0.0)
    for name in ("a", "b"):
        await cluster.ask(request_id=name)
        await cluster.settle()
    assert handler.held_messages_expire and len(handler._held) == 1
    monkeypatch.undo()
    assert not handler.held_messages_expire
    await serve()
    assert not handler.held_messages_expire


async def test_who_stands_by_again_drops_what_it_held(
    cluster: Running, handler: ClientMessageHandler, serve: Serve
) -> None:
    worker = await cluster.worker("w1")
    await cluster.ask(request_id="held")
    await cluster.settle()
    await handler.close()
    await cluster.bus.publish("mlx.infer.local.chat", b'{"prompt": "x"}', reply="_INBOX.local.x")
    await cluster.settle()
    await serve()
    await cluster.settle()
    await cluster.ask(request_id="later")
    assert (await worker.next_dispatch()).request_id == "later"


async def test_of_what_a_leader_that_leaves_has_got_only_what_has_an_id_is_kept(
    cluster: Running, handler: ClientMessageHandler, serve: Serve
) -> None:
    """With an id it is the same request that the leader transfers; without one it would be served
    twice."""
    worker = await cluster.worker("w1")
    await cluster.ask()
    await cluster.ask(request_id="named")
    await cluster.settle()
    handler.drop_held_without_id()
    await serve()
    assert (await worker.next_dispatch()).request_id == "named"
    await cluster.settle()
    assert worker.unread == (0, 0)


async def test_other_skills_are_taken_from_the_next_request_on(cluster: Running) -> None:
    worker = await cluster.worker("w1")
    rejected = await cluster.ask(subject="mlx.infer.local.code")
    assert failed(await rejected.next()).error.code == "unknown_skill"
    settings = cluster.controller._settings.model_dump()
    other = ClusterSettings.model_validate({**settings, "skills": {"code": ["demo"]}})
    cluster.controller._handler.configure(other)
    await cluster.ask(subject="mlx.infer.local.code")
    assert (await worker.next_dispatch()).skill == "code"
