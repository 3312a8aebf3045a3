"""Many clients at once: each gets, token by token, what it would get alone."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.client import Cluster, connect
from tests.access.roles import as_client
from tests.faults.asks import Ask
from tests.faults.load import Load, answers_alone
from tests.faults.records import DONE, Answer, Record
from tests.fidelity.asks import Span, differing_asks, markers
from tests.fidelity.difference import differences
from tests.processes import ClusterProcess, cluster_process
from tests.raw_client import RawClient, raw_client
from tests.tiers import long_form
from tests.ties import leave_out

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]

LIMIT_S = 1800
MANY = 64
NARROW = 32
"""Clients that share too little memory."""
SEEDS = pytest.mark.parametrize("number", [0, long_form(1), long_form(2)])
"""Numbers of loads."""


@pytest.mark.parametrize(
    ("clients", "prompt", "answer"), [(12, (10, 60), (6, 10)), long_form(MANY, (10, 230), (20, 40))]
)
async def test_the_real_model_gives_each_of_many_clients_the_answer_it_gives_alone(
    clients: int,
    prompt: Span,
    answer: Span,
    seed: int,
    demo_cluster: ClusterProcess,
    demo_folder: Path,
) -> None:
    asks = differing_asks(clients, seed, prompt=prompt, answer=answer, characters=False)
    answers = await judge(demo_cluster, asks, demo_folder)
    own = sum(marker in text_of(answers[name]) for name, marker in markers(asks).items())
    assert own > clients // 8, "the answers hold no markers at all: this test would see no leak"


@SEEDS
async def test_a_tiny_model_gives_each_of_64_clients_the_answer_it_gives_alone(
    number: int, seed: int, tiny_cluster: ClusterProcess, tiny_model: Path
) -> None:
    spans = {"prompt": (10, 300), "answer": (20, 40)}
    asks = differing_asks(MANY, seed + number, **spans, characters=True)
    await judge(tiny_cluster, asks, tiny_model)


async def test_a_token_that_rounding_cannot_explain_is_not_taken_for_a_tie(
    seed: int, tiny_cluster: ClusterProcess, tiny_model: Path
) -> None:
    asks = differing_asks(4, seed, prompt=(40, 60), answer=(8, 9), characters=True)
    async with connect(as_client(tiny_cluster.url)) as client:
        for ask, right in zip(asks, await answers_alone(client, asks), strict=True):
            wrong = replace(right, token_ids={0: [*right.token_ids[0][:4], 65, 66]})
            (found,) = await differences(client, ask, right, wrong, vocabulary_of(tiny_model))
            assert not found.is_tie and "choice 0, token 4" in found.what


@SEEDS
async def test_with_too_little_memory_for_kv_caches_each_of_32_tiny_clients_gets_its_answer(
    number: int, seed: int, tiny_model: Path
) -> None:
    spans = {"prompt": (380, 500), "answer": (40, 120)}
    asks = differing_asks(NARROW, seed + number, **spans, characters=True)
    with narrow_cluster(1, model=str(tiny_model)) as cluster:
        await judge_narrow(cluster, asks, tiny_model)


@pytest.mark.long_form
async def test_with_too_little_memory_for_kv_caches_each_of_32_real_clients_gets_its_answer(
    seed: int, demo_folder: Path
) -> None:
    asks = differing_asks(NARROW, seed, prompt=(120, 220), answer=(20, 40), characters=False)
    with narrow_cluster(64) as cluster:  # five blocks: room for three rows until one grows
        await judge_narrow(cluster, asks, demo_folder)


@contextmanager
def narrow_cluster(megabytes: int, *, model: str | None = None) -> Iterator[ClusterProcess]:
    """One worker with so much memory for KV caches, which alone limits its batch."""
    settings = {
        "CLUSTER__WORKER__CONTINUOUS_BATCHING__KV_MEMORY_MB": str(megabytes),
        "CLUSTER__WORKER__ADAPTIVE_BATCHING__ENABLED": "false",
    }
    with cluster_process(workers=1, model=model, settings=settings) as cluster:
        yield cluster


async def judge_narrow(cluster: ClusterProcess, asks: list[Ask], model: Path) -> None:
    """As `judge`; some gave way meanwhile, and the engine never held more than it may."""
    async with raw_client(cluster.url) as client:
        watch = asyncio.create_task(most_held(client))
        try:
            await judge(cluster, asks, model)
        finally:
            watch.cancel()
        most, budget, preemptions = await watch
    assert 0 < most <= budget
    assert preemptions > 0


async def most_held(client: RawClient) -> tuple[int, int, int]:
    """The most bytes that KV caches took until the task is cancelled, their budget, and how many
    sequences gave way: an engine that had to be started anew counts them from 0."""
    most = budget = preemptions = 0
    try:
        while True:
            (engine,) = (await client.health("worker-1"))["engines"]
            most, budget = max(most, engine["kv_bytes"]), engine["kv_budget_bytes"]
            preemptions = max(preemptions, engine["preemptions"])
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return most, budget, preemptions


async def judge(cluster: ClusterProcess, asks: list[Ask], model: Path) -> dict[str, Answer]:
    """Ask one after another, then all at once, each from a connection of its own; compare.
    Returns the answers by name."""
    vocabulary = vocabulary_of(model)
    async with connect(as_client(cluster.url)) as client:
        alone = await answers_alone(client, asks)
    together = await at_once(cluster, asks)
    ends = {record.name: record.broken or record.end for record in together}
    assert ends == {ask.name: DONE for ask in asks}
    loaded = [record.answer() for record in together]
    async with connect(as_client(cluster.url)) as client:
        found = [
            difference
            for ask, mine, theirs in zip(asks, alone, loaded, strict=True)
            for difference in await differences(client, ask, mine, theirs, vocabulary)
        ]
    for difference in found:
        if difference.is_tie:
            leave_out(difference.what)
    problems = [difference.what for difference in found if not difference.is_tie]
    problems += leaks(asks, loaded)
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems)
    return {ask.name: answer for ask, answer in zip(asks, loaded, strict=True)}


async def at_once(cluster: ClusterProcess, asks: list[Ask]) -> list[Record]:
    """Connect all clients first, then let all of them ask."""
    async with AsyncExitStack() as connections:
        clients: list[Cluster] = [
            await connections.enter_async_context(connect(as_client(cluster.url))) for _ in asks
        ]
        loads = [Load([ask], limit_s=LIMIT_S) for ask in asks]
        async with asyncio.TaskGroup() as tasks:
            for load, client in zip(loads, clients, strict=True):
                tasks.create_task(load.run(client))
    return [load.records[0] for load in loads]


def vocabulary_of(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def leaks(asks: list[Ask], answers: list[Answer]) -> list[str]:
    """Answers in which another request's marker stands."""
    words = markers(asks)
    return [
        f"the answer to {ask.name} holds the marker of {name}: {text_of(answer)!r}"
        for ask, answer in zip(asks, answers, strict=True)
        for name, word in words.items()
        if name != ask.name and word in text_of(answer)
    ]


def text_of(answer: Answer) -> str:
    return "\n".join(answer.text.values())
