"""What calls a conversation by its name, as the cluster hears it: read off NATS."""

import json
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

pytestmark = pytest.mark.anyio

_USER = {"role": "user", "content": "Hi"}
_ASKED: dict[str, Any] = {"model": "chat", "messages": [_USER], "max_tokens": 1}
_MESSAGES = "/v1/messages"

Session = Callable[..., Awaitable[str | None]]


@pytest.fixture
async def session(gateway: GatewayProcess, tiny_cluster: ClusterProcess) -> AsyncIterator[Session]:
    """Asks, and tells the session that reached the cluster."""
    heard: dict[str, Any] = {}

    async def take(msg: Msg) -> None:
        body = json.loads(msg.data)
        heard[body["request_id"]] = body

    client = await nats.connect(**connect_options(as_tester(tiny_cluster.url)))
    await client.subscribe("mlx.infer.>", cb=take)
    await client.flush()

    async def ask(
        path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any
    ) -> str | None:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            body = {name: v for name, v in (_ASKED | fields).items() if v is not None}
            answer = await http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        await client.flush()
        found: str | None = heard[answer.headers["x-request-id"]].get("session_id")
        return found

    yield ask
    await client.close()


def _turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


async def test_the_header_is_the_name_whatever_the_body_says(session: Session) -> None:
    header = {"X-Session-Id": "conversation-1"}
    assert await session(headers=header) == "conversation-1"
    assert await session(headers=header, session_id="other") == "conversation-1"
    assert await session(_MESSAGES, header, metadata={"user_id": "other"}) == "conversation-1"
    assert await session("/v1/completions", header, prompt="a", messages=None) == "conversation-1"
    assert await session(headers={"x-session-id": ""}, session_id="other") == "other"


async def test_the_body_names_it_where_there_is_no_header(session: Session) -> None:
    assert await session(session_id="conversation-2") == "conversation-2"
    assert await session(prompt_cache_key="conversation-3") == "conversation-3"
    assert await session(session_id="first", prompt_cache_key="second") == "first"
    assert await session(_MESSAGES, metadata={"user_id": "someone"}) == "someone"


@pytest.mark.parametrize("name", ["user/1 of @team", "é" * 100, "x" * 1000, "a\tb"])
async def test_a_name_that_cannot_be_an_id_becomes_one(session: Session, name: str) -> None:
    named = await session(session_id=name)
    assert named is not None and named.startswith("named-") and len(named) <= 64
    assert await session(session_id=name) == named
    assert await session(session_id=name + "x") != named


async def test_who_the_user_is_does_not_make_two_conversations_one(session: Session) -> None:
    plain = await session()
    assert await session(user="ada", safety_identifier="ada", metadata={"a": "b"}) == plain
    assert await session(user="ada", messages=_turns("Bye")) != plain


async def test_a_conversation_without_a_name_is_known_by_how_it_began(session: Session) -> None:
    began = await session()
    assert began is not None and began.startswith("auto-")
    assert await session(messages=_turns("Hi", "Hello!", "How are you?")) == began
    assert await session(messages=_turns("Hello")) != began
    system = {"role": "system", "content": "Be brief."}
    briefly = await session(messages=[system, _USER])
    assert briefly not in (began, None)
    assert await session(messages=[system, *_turns("Hi", "Hello!", "And?")]) == briefly
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert await session(messages=parts) == began


async def test_anthropics_conversations_are_known_likewise(session: Session) -> None:
    began = await session(_MESSAGES, system="Be brief.")
    assert began is not None and began.startswith("auto-")
    block = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    later = _turns("Hi", "Hello!", "And?")
    assert await session(_MESSAGES, system=block, messages=later) == began
    assert await session(_MESSAGES) != began


async def test_what_is_no_conversation_has_no_session(session: Session) -> None:
    assert await session("/v1/completions", prompt="a", messages=None) is None
    assert await session(f"{_MESSAGES}/count_tokens", max_tokens=None) is None
