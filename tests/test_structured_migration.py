"""Workers that die, and clients that leave, in the middle of reasoning, of a tool call's arguments,
of a schema: the pieces that reach the client make the answer of an undisturbed run."""

import json
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.client import Cluster, connect
from shared.ids import ClientName, RequestId
from shared.messages.stream import ChoiceOutput
from tests import tiers
from tests.access.roles import as_client
from tests.processes import ClusterProcess, cluster_process, wait_until
from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from worker.requests.active_request import call_id

pytestmark = pytest.mark.anyio

WORKERS = 3
KILLS = 3
CHOICES = 3
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "array"}},
                "required": ["path", "lines"],
            },
        },
    }
]
LINES = [f'{number}: "東京" {{"a": [1]}} </tool_call> \\' for number in range(40)]
NUMBERS = {"numbers": [number * 1.5 for number in range(200)], "of": "ünï"}


def written(*lines: str) -> str:
    """A call as the family writes it."""
    call = {"name": "write_file", "arguments": {"path": "a/b.py", "lines": lines}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


SCRIPTS = {
    "arguments": f"Well.\n{written(*LINES)}\n{written()}",
    "reasoning": f"<think>\n{'Hm, 2 < 3, so what? ' * 100}\n</think>\n\nIt is nine.",
    "schema": json.dumps(NUMBERS, ensure_ascii=False),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "numbers": {"type": "array", "items": {"type": "number"}},
        "of": {"enum": ["ünï", "other"]},
    },
    "required": ["numbers", "of"],
    "additionalProperties": False,
}
FIELDS: dict[str, dict[str, Any]] = {
    "arguments": {"tools": TOOLS},
    "reasoning": {},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
}
MIDDLE = {
    "arguments": lambda got: sum(len(each["arguments"]) for each in got["calls"].values()) > 60,
    "reasoning": lambda got: len(got["reasoning"]) > 60,
    "schema": lambda got: len(got["text"]) > 60,
}


@pytest.fixture(scope="module")
def folder(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("scripted") / "model"
    return make_scripted_model(target, demo_folder, TEMPLATES["hermes"], SCRIPTS)


@pytest.fixture
def cluster(folder: Path) -> Iterator[ClusterProcess]:
    """Of the test's own: `cluster up` does not start for ever again what dies."""
    model = {"path": str(folder), "trust_remote_code": True}
    settings = {
        "CLUSTER__MODELS": json.dumps({"scripted": model}),
        "CLUSTER__SKILLS": json.dumps({"chat": ["scripted"]}),
    }
    with cluster_process(workers=WORKERS, settings=settings) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(cluster.url)) as client:
        yield client


def empty() -> dict[str, Any]:
    return {"text": "", "reasoning": "", "calls": {}, "finish_reason": None}


def take(got: dict[str, Any], output: ChoiceOutput) -> None:
    """Join a piece to what came before, as a client would."""
    got["text"] += output.text
    got["reasoning"] += output.reasoning or ""
    for piece in output.tool_calls or ():
        if "id" in piece:
            assert piece["index"] not in got["calls"], "a call begins once"
            named = {"id": piece["id"], "name": piece["function"]["name"], "arguments": ""}
            got["calls"][piece["index"]] = named
        got["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
    got["finish_reason"] = output.finish_reason or got["finish_reason"]


def joined(outputs: Iterable[ChoiceOutput]) -> dict[str, Any]:
    got = empty()
    for output in outputs:
        take(got, output)
    return got


def without_ids(got: dict[str, Any]) -> dict[str, Any]:
    """They are made of the request's, which differ."""
    calls = got["calls"].items()
    return {
        **got,
        "calls": {number: {**call, "id": None} for number, call in calls},
    }


async def ask(
    client: Cluster,
    kind: str,
    members: dict[str, psutil.Process] | None = None,
    *,
    after: int = 0,
) -> tuple[dict[str, Any], RequestId, set[str]]:
    """What came, under which id, and from whom.

    Args:
        members: of them the one that answers is killed in the middle, `after` so many pieces.
    """
    got = empty()
    stream = client.stream(kind, max_tokens=4000, temperature=0, **FIELDS[kind])
    workers: set[str] = set()
    left = after
    async for output in stream:
        take(got, output)
        if stream.worker is not None:
            workers.add(stream.worker)
        if members is not None and stream.worker is not None and MIDDLE[kind](got):
            left -= 1
            if left < 0:
                members[stream.worker].kill()
                members = None
    assert members is None, "it ended before its middle"
    return got, stream.request_id, workers


async def all_members(cluster: ClusterProcess, client: Cluster) -> dict[str, psutil.Process]:
    """The workers, once those that died are back."""

    async def are_back() -> bool:
        workers = (await client.health()).workers
        return len(workers) == WORKERS and all(each.state == "ready" for each in workers)

    await wait_until(are_back)
    names = [f"worker-{number}" for number in range(1, WORKERS + 1)]
    return {name: cluster.member(name) for name in names}


@pytest.mark.parametrize("part", [0, *(tiers.long_form(part) for part in range(1, 7))])
@pytest.mark.parametrize("kind", list(SCRIPTS))
async def test_the_death_of_its_worker_changes_nothing_of_an_answer(
    cluster: ClusterProcess, client: Cluster, kind: str, part: int, seed: int
) -> None:
    undisturbed, _, _ = await ask(client, kind)
    expected = {"arguments": "tool_calls", "reasoning": "stop", "schema": "stop"}[kind]
    assert undisturbed["finish_reason"] == expected, undisturbed
    draw = random.Random(f"{seed} {kind} {part}")
    for _ in range(KILLS):
        members = await all_members(cluster, client)
        got, request_id, workers = await ask(client, kind, members, after=draw.randrange(60))
        assert len(workers) == 2, "another one went on"
        for number, call in got["calls"].items():
            assert call.pop("id") == call_id((ClientName("local"), request_id), 0, number)
        for call in undisturbed["calls"].values():
            call.pop("id", None)
        assert got == undisturbed


@pytest.mark.parametrize("kind", list(SCRIPTS))
async def test_the_death_of_its_worker_changes_none_of_several_choices(
    cluster: ClusterProcess, client: Cluster, kind: str
) -> None:
    undisturbed, _, _ = await ask(client, kind)
    members = await all_members(cluster, client)
    got = [empty() for _ in range(CHOICES)]
    stream = client.stream(kind, max_tokens=4000, temperature=0, n=CHOICES, **FIELDS[kind])
    killed = None
    async for output in stream:
        take(got[output.choice], output)
        if killed is None and all(map(MIDDLE[kind], got)):
            killed = stream.worker
            members[str(killed)].kill()
    assert killed not in (None, stream.worker), "another one went on"
    client_request = (ClientName("local"), stream.request_id)
    for choice, answer in enumerate(got):
        for number, call in answer["calls"].items():
            assert call.pop("id") == call_id(client_request, choice, number)
    for call in undisturbed["calls"].values():
        del call["id"]
    assert got == [undisturbed] * CHOICES


@pytest.mark.parametrize("kind", list(SCRIPTS))
async def test_a_client_that_left_resumes_an_answer_where_it_was(
    cluster: ClusterProcess, client: Cluster, kind: str, seed: int
) -> None:
    asked = {"content": kind, "max_tokens": 4000, "temperature": 0, **FIELDS[kind]}
    outputs = [output async for output in client.stream(**asked)]
    undisturbed = joined(outputs)
    draw = random.Random(f"{seed} {kind}")
    for _ in range(2 * KILLS):
        heard = outputs[: draw.randrange(1, len(outputs))]
        got = joined(heard)
        resume = {
            "token_ids": [token for output in heard for token in output.token_ids],
            "sent": {
                "text": len(got["text"]),
                "reasoning": len(got["reasoning"]),
                "tool_calls": [len(call["arguments"]) for call in got["calls"].values()],
            },
        }
        rest = [output async for output in client.stream(**asked, resume=resume)]
        assert rest[0].index == len(resume["token_ids"])
        assert without_ids(joined([*heard, *rest])) == without_ids(undisturbed)
