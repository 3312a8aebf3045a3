"""What the requests of one conversation share, as the cluster hears it: read off NATS."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import nats
import pytest
from nats.aio.msg import Msg

from tests.access.roles import as_tester, connect_options
from tests.controller.gateway.gateway_process import GatewayProcess
from tests.controller.gateway.long_answers import CHAT
from tests.processes import ClusterProcess
from tests.worker.running_agent import ENDLESS

pytestmark = pytest.mark.anyio

_USER = {"role": "user", "content": "Hi"}
_ASKED: dict[str, Any] = {"model": "chat", "messages": [_USER], "max_tokens": 1}
_MESSAGES = "/v1/messages"
_HAS_TEXT = '"content":"'

Heard = Callable[..., Awaitable[dict[str, Any]]]
Affinity = Callable[..., Awaitable[str | None]]


@pytest.fixture
async def heard(gateway: GatewayProcess, tiny_cluster: ClusterProcess) -> AsyncIterator[Heard]:
    """Asks, and tells what reached the cluster."""
    bodies: dict[str, Any] = {}

    async def take(msg: Msg) -> None:
        body = json.loads(msg.data)
        bodies[body["request_id"]] = body

    client = await nats.connect(**connect_options(as_tester(tiny_cluster.url)))
    await client.subscribe("mlx.infer.>", cb=take)
    await client.flush()

    async def ask(
        path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any
    ) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            body = {name: v for name, v in (_ASKED | fields).items() if v is not None}
            answer = await http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        await client.flush()
        found: dict[str, Any] = bodies[answer.headers["x-request-id"]]
        return found

    yield ask
    await client.close()


@pytest.fixture
def affinity(heard: Heard) -> Affinity:
    """Asks, and tells the affinity; no session may have come with it."""

    async def ask(*arguments: Any, **fields: Any) -> str | None:
        body = await heard(*arguments, **fields)
        assert "session_id" not in body and "history" not in body
        return body.get("affinity")

    return ask


def _turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


@pytest.mark.parametrize(
    "header",
    [
        "X-Claude-Code-Session-Id", "session-id", "thread-id", "X-Session-Id",
        "x-session-affinity", "X-OpenCode-Session",
    ],
)  # fmt: skip
async def test_a_header_names_it_whatever_the_body_says(affinity: Affinity, header: str) -> None:
    headers = {header: "conversation-1"}
    assert await affinity(headers=headers) == "conversation-1"
    assert await affinity(headers=headers, prompt_cache_key="other") == "conversation-1"
    metadata = {"user_id": "other"}
    assert await affinity(_MESSAGES, headers, metadata=metadata) == "conversation-1"
    asked = {"prompt": "a", "messages": None}
    assert await affinity("/v1/completions", headers, **asked) == "conversation-1"


async def test_the_narrowest_header_counts(affinity: Affinity) -> None:
    assert await affinity(headers={"session-id": "all", "thread-id": "one"}) == "one"
    assert await affinity(headers={"x-session-id": ""}, prompt_cache_key="other") == "other"


async def test_the_body_names_it_where_there_is_no_header(affinity: Affinity) -> None:
    assert await affinity(prompt_cache_key="conversation-3") == "conversation-3"
    assert await affinity(_MESSAGES, metadata={"user_id": "someone"}) == "someone"


@pytest.mark.parametrize("path", [CHAT, _MESSAGES])
async def test_only_a_session_id_in_the_body_makes_a_session(heard: Heard, path: str) -> None:
    body = await heard(path, {"x-session-id": "a"}, session_id="conversation-2")
    assert (body["session_id"], body["history"]) == ("conversation-2", "sent")
    assert "affinity" not in body


async def test_an_answer_has_a_total_time_only_where_that_is_asked(heard: Heard) -> None:
    assert (await heard())["timeout_ms"] == 24 * 60 * 60 * 1000
    assert (await heard(timeout_ms=50_000))["timeout_ms"] == 50_000


@pytest.mark.parametrize("name", ["user/1 of @team", "é" * 100, "x" * 1000, "a\tb"])
async def test_a_name_that_cannot_be_an_id_becomes_one(affinity: Affinity, name: str) -> None:
    named = await affinity(prompt_cache_key=name)
    assert named is not None and named.startswith("named-") and len(named) <= 64
    assert await affinity(prompt_cache_key=name) == named
    assert await affinity(prompt_cache_key=name + "x") != named


async def test_who_the_user_is_does_not_make_two_conversations_one(affinity: Affinity) -> None:
    plain = await affinity()
    assert await affinity(user="ada", safety_identifier="ada", metadata={"a": "b"}) == plain
    assert await affinity(user="ada", messages=_turns("Bye")) != plain


async def test_a_conversation_without_a_name_is_known_by_how_it_began(affinity: Affinity) -> None:
    began = await affinity()
    assert began is not None and began.startswith("began-")
    assert await affinity(messages=_turns("Hi", "Hello!", "How are you?")) == began
    assert await affinity(messages=_turns("Hello")) != began
    system = {"role": "system", "content": "Be brief."}
    briefly = await affinity(messages=[system, _USER])
    assert briefly not in (began, None)
    assert await affinity(messages=[system, *_turns("Hi", "Hello!", "And?")]) == briefly
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert await affinity(messages=parts) == began


async def test_anthropics_conversations_are_known_likewise(affinity: Affinity) -> None:
    began = await affinity(_MESSAGES, system="Be brief.")
    assert began is not None and began.startswith("began-")
    block = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    later = _turns("Hi", "Hello!", "And?")
    assert await affinity(_MESSAGES, system=block, messages=later) == began
    assert await affinity(_MESSAGES) != began


async def test_requests_with_one_name_do_not_wait_for_each_other(gateway: GatewayProcess) -> None:
    asked = _ASKED | {"max_tokens": 900, "logit_bias": ENDLESS, "stream": True}
    came: list[tuple[float, float]] = []

    async def ask(http: httpx.AsyncClient) -> None:
        named = asked | {"prompt_cache_key": "the same"}
        async with http.stream("POST", CHAT, json=named) as answer:
            times = [time.monotonic() async for line in answer.aiter_lines() if _HAS_TEXT in line]
        came.append((times[1], times[-1]))

    async with (
        httpx.AsyncClient(base_url=gateway.url, timeout=60) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(4):
            tasks.create_task(ask(http))
    pairs = itertools.pairwise(sorted(came))
    assert all(later_began < ended for (_, ended), (later_began, _) in pairs), came


async def test_what_is_no_conversation_has_none(affinity: Affinity) -> None:
    assert await affinity("/v1/completions", prompt="a", messages=None) is None
    assert await affinity(f"{_MESSAGES}/count_tokens", max_tokens=None) is None
