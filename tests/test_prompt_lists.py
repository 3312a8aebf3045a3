"""A list of prompts on real workers: the answers are those that each prompt gets alone."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared import subjects
from shared.client import Cluster, Completion, connect
from shared.ids import WorkerId
from shared.messages.dispatch import choice_seed
from shared.messages.health import LeaderInfo
from shared.messages.stream import ChoiceOutput
from shared.version import PROTOCOL
from tests.access.roles import as_client, as_tester
from tests.asking import Answer, Asker
from tests.processes import ClusterProcess, cluster_process
from tests.worker.running_agent import ENDLESS

pytestmark = pytest.mark.anyio

TEXTS = ["Once upon a time", "The harbour was quiet", "She counted the boxes twice", "Rain"]
IDS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 1.1, "seed": 2**53 - 1, "top_p": 0.8, "n": 2},
]


@contextlib.contextmanager
def two_workers(model: Path) -> Iterator[ClusterProcess]:
    """Prompts go to them in turn, so that both serve a list, however fast each is."""
    settings = {"CLUSTER__CONTROLLER__ROUTING__POLICY": "round-robin"}
    with cluster_process(workers=2, model=str(model), settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def in_turn(tiny_model: Path) -> Iterator[ClusterProcess]:
    with two_workers(tiny_model) as cluster:
        yield cluster


async def ask(cluster: Cluster, prompts: Sequence[object], **fields: Any) -> Completion:
    stream = cluster.stream(prompt=list(prompts), max_tokens=24, logit_bias=ENDLESS, **fields)
    return await stream.collect()


async def warm_everywhere(cluster: Cluster) -> str:
    """Return once every worker has the model; which it is."""
    async with asyncio.timeout(60):
        while True:
            health = await cluster.health()
            if all(model.state == "warm" for each in health.workers for model in each.models):
                return health.workers[0].models[0].id
            await asyncio.sleep(0.05)


async def dispatch(asker: Asker, worker: str, seed: int, leader: LeaderInfo, **body: Any) -> Answer:
    """Have a worker answer, in the name of the leader, with a seed of 64 bits."""
    answer = Answer()
    inbox = asker.client.new_inbox()
    await asker.client.subscribe(inbox, cb=answer.take)
    order = {
        "request_id": inbox, "client": "local", "skill": "chat", "model": body.pop("model"),
        "attempt": 0, "inboxes": [inbox], "seed": seed, "elapsed_ms": 0.0, "request": body,
    }  # fmt: skip
    batch = {"protocol": PROTOCOL, "owner": leader.id, "term": leader.term, "dispatches": [order]}
    subject = subjects.worker_infer(WorkerId(worker))
    await asker.client.request(subject, json.dumps(batch).encode(), timeout=20)
    await asyncio.wait_for(answer.ended.wait(), 60)
    return answer


async def completed(asker: Asker) -> dict[str, int]:
    """How many requests each worker has completed."""
    reports = await asker.reports()
    return {r["id"]: r["completed_requests"] for r in reports if "engines" in r}


@pytest.mark.parametrize("prompts", [TEXTS, IDS], ids=["texts", "ids"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "two each"])
async def test_choices_are_those_of_one_worker_and_of_each_prompt_alone(
    in_turn: ClusterProcess, prompts: Sequence[object], sampling: dict[str, Any]
) -> None:
    n, seed = sampling.get("n", 1), sampling.get("seed", 3)
    fields = {**sampling, "seed": seed}
    asking = Asker.connect(in_turn, as_tester(in_turn.url))  # it plays a controller, too
    async with asking as asker, connect(as_client(in_turn.url)) as cluster:
        model = await warm_everywhere(cluster)
        body = {"max_tokens": 24, "logit_bias": ENDLESS, "model": model, **sampling}
        body.pop("seed", None)
        before = await completed(asker)
        answer = await ask(cluster, prompts, **fields)
        after = await completed(asker)
        worker = in_turn.ready["workers"][0]
        leader = (await cluster.health()).leader
        assert leader is not None
        together = await dispatch(asker, worker, seed, leader, **body, prompt=prompts)
        alone = [
            await dispatch(
                asker, worker, choice_seed(seed, number * n), leader, **body, prompt=prompt
            )
            for number, prompt in enumerate(prompts)
        ]
    assert all(after[worker] > before[worker] for worker in after), "one worker served all of it"
    token_ids = [token for choice in answer.choices for token in choice.token_ids]
    assert [len(choice.token_ids) for choice in answer.choices] == [24] * n * len(prompts)
    assert token_ids == together.token_ids
    assert token_ids == [token for one in alone for token in one.token_ids]
    (end,) = together.ends
    assert answer.usage.prompt_tokens == end["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == end["usage"]["completion_tokens"]


async def test_a_stream_and_a_whole_answer_say_the_same(in_turn: ClusterProcess) -> None:
    body = {
        "prompt": TEXTS, "n": 2, "seed": 5, "max_tokens": 12, "logit_bias": ENDLESS,
        "logprobs": 1,
    }  # fmt: skip
    async with Asker.connect(in_turn) as asker:
        streamed, whole, multiplexed = await asker.answers(
            json.dumps({**body, **more}).encode()
            for more in ({}, {"stream": False}, {"multiplex": True})
        )
    assert len(streamed.token_ids) == 12 * 8
    assert streamed.token_ids == whole.token_ids == multiplexed.token_ids
    assert all(list(one) == ["messages"] for one in multiplexed.arrived)
    (end,) = whole.messages
    assert [choice["choice"] for choice in end["choices"]] == list(range(8))
    text: dict[int, str] = {}
    for message in streamed.messages:
        if "choice" in message:
            text[message["choice"]] = text.get(message["choice"], "") + message["text"]
    assert [choice["text"] for choice in end["choices"]] == [text[choice] for choice in range(8)]
    assert end["usage"] == streamed.ends[0]["usage"] | {
        "cached_tokens": end["usage"]["cached_tokens"]
    }
    assert {message["worker"] for message in streamed.messages} == {None}


async def test_a_prompt_that_does_not_fit_fails_alone(in_turn: ClusterProcess) -> None:
    async with connect(as_client(in_turn.url)) as cluster:
        answer = await ask(cluster, ["short", "x" * 100_000, "short"], temperature=0)
    good, bad, other = answer.choices
    assert (bad.finish_reason, bad.token_ids) == ("error", [])
    assert bad.error is not None
    assert (bad.error.code, bad.error.param) == ("context_length_exceeded", "prompt")
    assert bad.error.message.startswith("prompt.1: ")
    assert good.token_ids == other.token_ids and len(good.token_ids) == 24
    assert answer.usage.completion_tokens == 48


async def test_a_list_of_more_prompts_than_there_are_places_is_served_to_its_end(
    in_turn: ClusterProcess,
) -> None:
    async with connect(as_client(in_turn.url)) as cluster:
        answer = await cluster.generate(
            prompt=["x"] * 128, max_tokens=3, temperature=0, logit_bias=ENDLESS
        )
    assert len(answer.choices) == 128
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 1


async def test_what_a_worker_that_is_killed_had_goes_on_at_the_other_one(
    tiny_model: Path,
) -> None:
    body: dict[str, Any] = {
        "prompt": ["Once", "Twice"],
        "max_tokens": 400,
        "temperature": 0,
        "logit_bias": ENDLESS,
    }
    with two_workers(tiny_model) as killed:
        async with connect(as_client(killed.url)) as cluster:
            await warm_everywhere(cluster)
            alone = [(choice.token_ids, choice.text) for choice in
                     (await cluster.generate(**body)).choices]  # fmt: skip
            heard: dict[int, list[ChoiceOutput]] = {0: [], 1: []}
            struck = False
            stream = cluster.stream(**body)
            async with stream:
                async for output in stream:
                    heard[output.choice].append(output)
                    if all(heard.values()) and not struck:
                        struck = True
                        victim = killed.ready["workers"][1]
                        for process in killed.find("worker", victim):
                            process.kill()
    answers = [ChoiceOutput.joined(heard[choice]) for choice in (0, 1)]
    assert [answer.finish_reason for answer in answers] == ["length"] * 2
    assert [(answer.token_ids, answer.text) for answer in answers] == alone
