"""The official `openai` client, unmodified, against the real model."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from shared.client import connect
from tests.access.roles import as_client
from tests.controller.gateway.gateway_process import GatewayProcess
from tests.processes import ClusterProcess, wait_until

_MODEL = "demo"
_QUESTION = "What is the capital of France?"
_PROMPT = "The capital of France is"


def _messages(text: str = _QUESTION) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def many(demo_gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{demo_gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def _active(cluster: ClusterProcess) -> int:
    """Requests that the cluster's worker has, waiting or running."""
    async with connect(as_client(cluster.url)) as connected:
        worker = (await connected.health()).workers[0]
        return worker.active_requests + worker.queued_requests


async def _until_active(cluster: ClusterProcess, count: int, limit_s: float) -> None:
    """Return once the worker has so many requests; it tells of itself once a second."""

    async def is_so() -> bool:
        return await _active(cluster) == count

    await wait_until(is_so, limit_s)


def test_a_chat(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=_MODEL, messages=_messages(), temperature=0, max_tokens=20
    )
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert answer.model == _MODEL and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_as_the_whole_answer(openai_client: openai.OpenAI) -> None:
    fields: Any = {"model": _MODEL, "messages": _messages(), "temperature": 0, "max_tokens": 20}
    whole = openai_client.chat.completions.create(**fields)
    chunks = list(
        openai_client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == (
        whole.choices[0].message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_conversation_goes_on_with_what_was_answered(openai_client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "developer", "content": "Answer in one word."}, *_messages()]
    for _ in range(2):
        answer = openai_client.chat.completions.create(
            model=_MODEL, messages=messages, max_tokens=5, temperature=0
        )
        messages += [answer.choices[0].message, {"role": "user", "content": "And again?"}]
    assert answer.usage is not None and answer.usage.prompt_tokens > 20


def test_several_choices_with_a_seed_are_the_same_twice(openai_client: openai.OpenAI) -> None:
    answers = [
        openai_client.chat.completions.create(
            model=_MODEL, messages=_messages("Tell a story."), n=3, seed=7, max_tokens=8
        )
        for _ in range(2)
    ]
    texts = [[choice.message.content for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    assert [choice.index for choice in answers[0].choices] == [0, 1, 2]


def test_logprobs_come_with_as_many_others_as_asked(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=_MODEL, messages=_messages(), temperature=0, max_tokens=4,
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == answer.choices[0].message.content
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
        assert bytes(entry.bytes or []).decode() == entry.token


def test_stop_strings_end_an_answer(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=_MODEL, messages=_messages(), temperature=0, stop=["Paris"], max_tokens=30
    )
    assert "Paris" not in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_plain_completions_of_several_prompts(openai_client: openai.OpenAI) -> None:
    answer = openai_client.completions.create(
        model=_MODEL, prompt=[_PROMPT, _PROMPT], temperature=0, max_tokens=5, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text == answer.choices[1].text
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset
    assert logprobs.text_offset[0] == 0 and len(logprobs.tokens) == 5
    stream = openai_client.completions.create(
        model=_MODEL, prompt=_PROMPT, temperature=0, max_tokens=5, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_an_answer_is_json_where_that_is_asked_for(openai_client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 20}}}
    answer = openai_client.chat.completions.create(
        model=_MODEL, messages=_messages(), temperature=0,
        response_format={
            "type": "json_schema", "json_schema": {
                "name": "capital", "schema": {**schema, "required": ["capital"]}
            },
        },
    )  # fmt: skip
    assert isinstance(json.loads(answer.choices[0].message.content or "")["capital"], str)


def test_models_are_listed_and_found_by_name(openai_client: openai.OpenAI) -> None:
    assert {model.id for model in openai_client.models.list()} == {_MODEL, "chat"}
    assert openai_client.models.retrieve(_MODEL).id == _MODEL
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("gpt-17")


def test_errors_are_the_clients_own_and_name_the_field(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        openai_client.chat.completions.create(model="gpt-17", messages=_messages())
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        openai_client.chat.completions.create(model=_MODEL, messages=_messages(), temperature=9)
    assert wrong.value.param == "temperature" and "2" in wrong.value.message
    with pytest.raises(openai.BadRequestError) as long:
        openai_client.chat.completions.create(model=_MODEL, messages=_messages("x " * 50_000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as later:
        openai_client.chat.completions.create(
            model=_MODEL, messages=_messages(), functions=[{"name": "now"}]
        )
    assert (later.value.code, later.value.param) == ("not_supported", "functions")
    assert missing.value.request_id is not None


@pytest.mark.anyio
async def test_many_at_once_each_get_their_own_answer(many: openai.AsyncOpenAI) -> None:
    async def ask(number: int) -> str:
        stream = await many.chat.completions.create(
            model=_MODEL, messages=_messages(f"Say a word about the number {number}."),
            temperature=0, max_tokens=8, stream=True,
        )  # fmt: skip
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    alone = [await ask(number) for number in range(3)]
    together = await asyncio.gather(*(ask(number % 3) for number in range(12)))
    assert together == alone * 4


@pytest.mark.anyio
async def test_who_hangs_up_frees_the_place_long_before_the_end(
    many: openai.AsyncOpenAI, demo_cluster: ClusterProcess
) -> None:
    await _until_active(demo_cluster, 0, 20)
    long: Any = {
        "model": _MODEL, "messages": _messages("Count to a thousand."), "max_tokens": 6000,
        "logit_bias": {"2": -100, "0": -100},
    }  # fmt: skip
    stream = await many.chat.completions.create(**long, stream=True)
    await anext(aiter(stream))
    whole = asyncio.create_task(many.chat.completions.create(**long))
    await _until_active(demo_cluster, 2, 20)
    await stream.close()
    whole.cancel()
    await _until_active(demo_cluster, 0, 10)


@pytest.mark.anyio
async def test_a_client_that_waits_too_briefly_says_so_itself(
    many: openai.AsyncOpenAI, demo_cluster: ClusterProcess
) -> None:
    with pytest.raises(openai.APITimeoutError):
        await many.with_options(timeout=0.3).chat.completions.create(
            model=_MODEL, messages=_messages("Tell a long story."), max_tokens=1000
        )
    await _until_active(demo_cluster, 0, 10)


@pytest.mark.anyio
async def test_the_time_a_request_gives_itself_ends_it(many: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as late:
        await many.chat.completions.create(
            model=_MODEL, messages=_messages("Tell a long story."), max_tokens=1000,
            extra_body={"timeout_ms": 300},
        )  # fmt: skip
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
