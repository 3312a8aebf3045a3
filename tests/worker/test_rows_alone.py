"""Models whose rows decode one at a time, beside one whose rows are batched, in a real cluster:
many requests at once get the tokens that each gets by itself."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import yaml

from shared.client import Cluster, connect
from tests.access.roles import as_client
from tests.architectures.configurations import all_configurations
from tests.architectures.small_model import write_model
from tests.processes import ClusterProcess, cluster_process, wait_until
from tests.shared.cli.simulated_cluster import run
from tests.tiers import long_form

pytestmark = pytest.mark.anyio

_ALONE = ("gpt_bigcode", "afm7", "minimax_m3_vl", "deepseek_v41")
_TOGETHER = "llama"
_VOCABULARY = 256  # of the tokenizer, without its special tokens
_PROMPT_TOKENS = (3, 17, 40, 150, 400, 700, 9, 64)
_TOKENS = 32


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """One worker, all models loaded before it is asked."""
    folder = tmp_path_factory.mktemp("models")
    configurations = all_configurations()
    models = (*_ALONE, _TOGETHER)
    for name in models:
        write_model(folder / name, configurations[name])
    config = folder / "cluster.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "skills": {"chat": list(models)},
                "models": {name: {"path": str(folder / name)} for name in models},
                "worker": {"pre_warming": {"models": [{"model": name} for name in models]}},
            }
        )
    )
    with cluster_process(arguments=("--config", str(config))) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as client:

        async def all_are_warm() -> bool:
            (worker,) = (await client.health()).workers
            return all(status.state == "warm" for status in worker.models)

        await wait_until(all_are_warm)
        yield client


async def _tokens(cluster: Cluster, model: str, prompt: list[int]) -> list[int]:
    tokens: list[int] = []
    asked = cluster.stream(model=model, prompt=prompt, max_tokens=_TOKENS, temperature=0)
    async with asked as stream:
        async for output in stream:
            tokens += output.token_ids
    return tokens


def _prompts(seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(_VOCABULARY) for _ in range(length)] for length in _PROMPT_TOKENS]


@pytest.mark.parametrize("model", [*_ALONE[:2], *(long_form(name) for name in _ALONE[2:])])
async def test_many_at_once_get_what_each_gets_by_itself(cluster: Cluster, model: str) -> None:
    """With requests for a batched model meanwhile, then with longer prompts of cached prefixes."""
    first = _prompts(seed=1)
    longer = [
        prompt + added for prompt, added in zip(first, reversed(_prompts(seed=2)), strict=True)
    ]
    others = [await _tokens(cluster, _TOGETHER, prompt) for prompt in first]
    for prompts in (first, longer):
        by_itself = [await _tokens(cluster, model, prompt) for prompt in prompts]
        together = await asyncio.gather(
            *(_tokens(cluster, model, prompt) for prompt in prompts),
            *(_tokens(cluster, _TOGETHER, prompt) for prompt in first),
        )
        assert together == [*by_itself, *others]
        assert all(len(answer) > 0 for answer in by_itself)


async def test_who_looks_sees_which_decode_alone_and_why(
    cluster: Cluster, process: ClusterProcess
) -> None:
    (worker,) = (await cluster.health()).workers
    batching = {status.id: status.batching for status in worker.models}
    assert batching == {**dict.fromkeys(_ALONE, "alone"), _TOGETHER: "together"}
    printed = await run("models", "--nats", process.url, columns=120)
    for model in _ALONE:
        assert f"{model} on worker-1: batching: rows alone: " in printed.out
    assert f"{_TOGETHER} on worker-1: batching" not in printed.out
