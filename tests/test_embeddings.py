"""Embeddings through a real cluster of two workers: with the client library, and over HTTP."""

import asyncio
import base64
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import yaml

from shared.client import Cluster, connect
from shared.errors import ClusterError
from tests.access.roles import as_client
from tests.asking import Asker
from tests.encoders import random_inputs, wait_until_warm
from tests.models import make_tiny_model
from tests.processes import ClusterProcess, cluster_process, wait_until

pytestmark = pytest.mark.anyio

_DIMENSIONS = 384
_EQUAL = 0.9999


@pytest.fixture(scope="module")
def process(
    minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """Both workers have MiniLM and a model that generates."""
    folder = tmp_path_factory.mktemp("models")
    config = folder / "cluster.yaml"
    tiny = make_tiny_model(folder / "tiny", endless=True)
    config.write_text(
        yaml.safe_dump(
            {
                "skills": {"embed": ["minilm"], "chat": ["tiny"]},
                "models": {"minilm": {"path": str(minilm_folder)}, "tiny": {"path": str(tiny)}},
                "worker": {
                    "pre_warming": {"models": [{"model": "minilm"}, {"model": "tiny"}]},
                    "engines": {"restart_delay_ms": 10},
                },
            }
        )
    )
    arguments = ("--config", str(config), "--http-port", "0")
    with cluster_process(workers=2, arguments=arguments) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as client:
        await wait_until_warm(client, 4)
        yield client


def _cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return float(dot / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5)


async def test_a_text_has_the_same_vector_alone_and_among_others(cluster: Cluster) -> None:
    texts = random_inputs(200)
    together = await cluster.embed(texts)
    assert [len(vector) for vector in together.vectors] == [_DIMENSIONS] * len(texts)
    tokens = 0
    for text, vector in list(zip(texts, together.vectors, strict=True))[::20]:
        alone = await cluster.embed(text)
        tokens += alone.usage.prompt_tokens
        assert _cosine(alone.vectors[0], vector) >= _EQUAL
        assert abs(_cosine(vector, vector) - 1) < 1e-6
    assert 0 < tokens < together.usage.prompt_tokens


async def test_texts_of_one_list_are_spread_over_the_workers(cluster: Cluster) -> None:
    texts = random_inputs(640)
    before = {worker.id: worker for worker in (await cluster.health()).workers}
    vectors = (await cluster.embed(texts)).vectors
    assert _cosine(vectors[500], (await cluster.embed(texts[500])).vectors[0]) >= _EQUAL
    assert len(before) == 2

    async def both_have_served() -> bool:
        workers = (await cluster.health()).workers
        return all(
            worker.completed_requests > before[worker.id].completed_requests for worker in workers
        )

    await wait_until(both_have_served)


async def test_tokens_are_embedded_as_the_text_that_they_are_of(cluster: Cluster) -> None:
    (text,) = (await cluster.embed("hello world")).vectors
    hello_world = [101, 7592, 2088, 102]  # of bert-base-uncased, with [CLS] and [SEP]
    (tokens,) = (await cluster.embed([hello_world])).vectors
    assert _cosine(text, tokens) >= _EQUAL
    assert (await cluster.embed(hello_world)).vectors == [tokens]


async def test_a_killed_worker_costs_no_vector_and_none_comes_twice(
    cluster: Cluster, process: ClusterProcess
) -> None:
    """In the middle of 2,000 texts; over NATS, so that each message is seen."""
    texts = random_inputs(2000)
    embedded: Counter[int] = Counter()
    stream = cluster.stream(input=texts, skill="embed", timeout_ms=300_000)
    killed = False
    async with stream:
        async for output in stream:
            assert output.embedding is not None and output.finish_reason == "stop"
            embedded[output.choice] += 1
            if len(embedded) > 300 and not killed:
                killed = True
                process.member("worker-2").kill()
    assert killed
    assert embedded == Counter(range(2000))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"texts": []}, "invalid_request", "input"),
        ({"texts": ""}, "invalid_request", "input"),
        ({"texts": ["fine", ""]}, "invalid_request", None),
        ({"texts": "fine", "dimensions": 385}, "invalid_request", "dimensions"),
        ({"texts": "fine", "dimensions": 0}, "invalid_request", "dimensions"),
        ({"texts": "fine", "prompt_name": "query"}, "invalid_request", "prompt_name"),
        ({"texts": "word " * 300}, "context_length_exceeded", "input"),
        ({"texts": ["fine", "word " * 300]}, "context_length_exceeded", "input.1"),
        ({"texts": [[101, 999_999]]}, "invalid_request", "input"),
        ({"texts": "fine", "model": "tiny", "skill": "chat"}, "not_supported", None),
        ({"texts": "fine", "n": 2}, "invalid_request", "n"),
        ({"texts": "fine", "session_id": "s"}, "invalid_request", "session_id"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_what_cannot_be_embedded_says_why(
    cluster: Cluster, fields: dict[str, Any], code: str, param: str | None
) -> None:
    with pytest.raises(ClusterError) as failed:
        await cluster.embed(fields.pop("texts"), **fields)
    assert failed.value.code == code
    if param is not None:
        assert failed.value.param == param


async def test_of_a_long_list_the_text_that_is_too_long_is_named(cluster: Cluster) -> None:
    texts = random_inputs(300)
    texts[217] = "word " * 300
    with pytest.raises(ClusterError) as failed:
        await cluster.embed(texts)
    assert (failed.value.code, failed.value.param) == ("context_length_exceeded", "input.217")


async def test_a_model_that_embeds_generates_nothing(cluster: Cluster) -> None:
    with pytest.raises(ClusterError) as failed:
        await cluster.generate("Hello", skill="embed")
    assert failed.value.code == "not_supported"
    assert "minilm" in failed.value.message and "embeds" in failed.value.message


async def test_shortened_vectors_have_unit_length(cluster: Cluster) -> None:
    (whole,) = (await cluster.embed("a bright morning")).vectors
    (short,) = (await cluster.embed("a bright morning", dimensions=100)).vectors
    assert len(short) == 100
    assert _cosine(short, whole[:100]) >= _EQUAL
    assert abs(sum(number * number for number in short) - 1) < 1e-5


async def test_who_stops_reading_frees_the_workers(
    cluster: Cluster, process: ClusterProcess
) -> None:
    async with cluster.stream(input=random_inputs(2000), skill="embed") as stream:
        async for _ in stream:
            break
    async with Asker.connect(process) as asker:
        await asker.until_idle()


async def test_texts_of_several_messages_come_in_order(cluster: Cluster) -> None:
    """More than one request can hold; a word of 1,500 letters is one token."""
    texts = [f"{number} {'x' * 1500}" for number in range(1500)]
    assert len(orjson.dumps(texts)) > cluster.bus.max_payload // 4
    vectors = (await cluster.embed(texts)).vectors
    assert len(vectors) == 1500
    for number in (0, 749, 1499):
        (alone,) = (await cluster.embed(texts[number])).vectors
        assert _cosine(vectors[number], alone) >= _EQUAL
    texts[1400] = "word " * 300
    with pytest.raises(ClusterError) as failed:
        await cluster.embed(texts)
    assert failed.value.param == "input.1400"


# HTTP.


@pytest.fixture
async def client(process: ClusterProcess, cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{process.ready['http_url']}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as made:
        yield made


async def test_openais_package_gets_the_vectors(
    client: openai.AsyncOpenAI, cluster: Cluster
) -> None:
    texts = random_inputs(30)
    answer = await client.embeddings.create(model="minilm", input=texts)  # base64, its default
    assert [item.index for item in answer.data] == list(range(30))
    assert answer.model == "minilm"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    numbers = await client.embeddings.create(model="embed", input=texts, encoding_format="float")
    expected = (await cluster.embed(texts)).vectors
    for item, other, vector in zip(answer.data, numbers.data, expected, strict=True):
        assert _cosine(item.embedding, other.embedding) > 1 - 1e-9
        assert _cosine(item.embedding, vector) >= _EQUAL


async def test_base64_is_float32_in_little_endian(
    process: ClusterProcess, cluster: Cluster
) -> None:
    url = f"{process.ready['http_url']}/v1/embeddings"
    async with httpx.AsyncClient() as http:
        body = {"model": "minilm", "input": "a river", "encoding_format": "base64"}
        packed = (await http.post(url, json=body)).json()["data"][0]["embedding"]
        body["encoding_format"] = "float"
        plain = (await http.post(url, json=body)).json()["data"][0]["embedding"]
    numbers = struct.unpack(f"<{_DIMENSIONS}f", base64.b64decode(packed))
    assert numbers == pytest.approx(plain, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a"] * 10_000}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "a", "dimensions": 100_000}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": ["fine", "word " * 300]}, "input.1"),
        ({"input": "a", "model": "tiny"}, None),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_a_bad_request_names_the_field(
    process: ClusterProcess, cluster: Cluster, fields: dict[str, Any], named: str | None
) -> None:
    url = f"{process.ready['http_url']}/v1/embeddings"
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(url, json={"model": "minilm", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == named


async def test_a_body_that_is_not_utf8_is_refused(process: ClusterProcess) -> None:
    url = f"{process.ready['http_url']}/v1/embeddings"
    async with httpx.AsyncClient() as http:
        body = b'{"model": "minilm", "input": "\xff\xfe"}'
        answer = await http.post(url, content=body)
    assert answer.status_code == 400


async def test_a_caller_that_leaves_frees_the_workers(
    process: ClusterProcess, cluster: Cluster
) -> None:
    url = f"{process.ready['http_url']}/v1/embeddings"
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(url, json={"model": "minilm", "input": random_inputs(2000)}, timeout=1)
    async with Asker.connect(process) as asker:
        await asker.until_idle()


async def test_a_stream_beside_many_texts_is_whole_and_the_same(cluster: Cluster) -> None:
    async def answer() -> list[int]:
        completion = await cluster.generate("Hello", model="tiny", max_tokens=200, temperature=0)
        return completion.token_ids

    alone = await answer()
    embedding = asyncio.create_task(cluster.embed(random_inputs(1000)))
    assert await asyncio.gather(*(answer() for _ in range(4))) == [alone] * 4
    assert len((await embedding).packed) == 1000
