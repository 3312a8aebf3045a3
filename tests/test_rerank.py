"""Scores and rankings through a real cluster of two workers: with the client library, over HTTP and
with `cluster run`. One model has a head that scores pairs; of the others one may compare
embeddings, one may not."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from shared.client import Cluster, connect
from shared.errors import ClusterError, InvalidRequest
from tests.access.roles import as_client
from tests.controller.gateway.programs import environment, program
from tests.controller.gateway.programs import run as run_program
from tests.encoders import random_inputs, wait_until_warm
from tests.models import make_tiny_model
from tests.processes import ClusterProcess, cluster_process
from tests.reranker import make_reranker
from tests.shared.cli.simulated_cluster import run
from worker.engine.text_preparation import RANKED_BY_EMBEDDINGS

pytestmark = pytest.mark.anyio

_REFERENCES = {
    ("what is a cat?", "a cat is an animal."): 0.3667715,
    ("a", "b"): 0.4998824,
    (
        "where is the river",
        "the river walks under the bright morning engine, quietly.",
    ): 0.2440703,
    ("capital of france", "Berlin is in Germany."): 0.7031287,
    ("capital of france", "Paris is in France."): 0.6688617,
}
"""Of sentence-transformers 6.2 with PyTorch 2.13: `CrossEncoder.predict`."""
_REFERENCE_OF_CUT = 0.4897091
_CUT = ("capital of france", "paper " * 700)
_ROUNDING = 1e-5


@pytest.fixture(scope="module")
def process(
    minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("models")
    config = folder / "cluster.yaml"
    models = {
        "reranker": {"path": str(make_reranker(minilm_folder, folder / "reranker"))},
        "minilm": {"path": str(minilm_folder), "rerank": "embeddings"},
        "plain": {"path": str(minilm_folder)},
        "labels": {"path": str(make_reranker(minilm_folder, folder / "labels", labels=3))},
        "tiny": {"path": str(make_tiny_model(folder / "tiny"))},
    }
    warm = [{"model": name} for name in ("reranker", "minilm", "plain", "tiny")]
    skills = {
        "rerank": ["reranker", "minilm", "plain", "labels", "tiny"],
        "embed": ["minilm", "plain", "reranker"],
        "chat": ["tiny", "reranker"],
    }
    settings = {
        "skills": skills,
        "gateway": {"model_aliases": {"text-embedding-3-small": "embed"}},
        "models": models,
        "worker": {"pre_warming": {"models": warm}, "engines": {"restart_delay_ms": 10}},
    }
    config.write_text(yaml.safe_dump(settings))
    arguments = ("--config", str(config), "--http-port", "0")
    with cluster_process(workers=2, arguments=arguments) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as client:
        await wait_until_warm(client, 8)
        yield client


def _near(values: Any) -> Any:
    return pytest.approx(values, abs=_ROUNDING)


async def test_pairs_have_the_scores_of_the_reference(cluster: Cluster) -> None:
    queries, texts = zip(*_REFERENCES, strict=True)
    scores = await cluster.score(list(queries), list(texts))
    assert list(scores.values) == _near(list(_REFERENCES.values()))
    assert scores.warnings == () and scores.usage.prompt_tokens > 40
    (pair,) = [each for each in _REFERENCES if each[0] == "a"]
    assert (await cluster.score(*pair)).values == _near((_REFERENCES[pair],))


async def test_a_pair_has_the_same_score_alone_and_among_others(cluster: Cluster) -> None:
    documents = random_inputs(300)
    together = await cluster.score("a bright morning", documents)
    for number in range(0, 300, 50):
        alone = await cluster.score("a bright morning", [documents[number]])
        assert alone.values[0] == _near(together.values[number])
    own = await cluster.score(["a bright morning"] * 300, documents)
    assert list(own.values) == _near(list(together.values))


async def test_a_ranking_has_the_most_relevant_first(cluster: Cluster) -> None:
    documents = random_inputs(100, seed=2)
    scores = (await cluster.score("the cat", documents)).values
    ranking = await cluster.rerank("the cat", documents, top_n=10)
    assert [each.score for each in ranking.results] == _near(sorted(scores, reverse=True)[:10])
    assert all(each.score == _near(scores[each.index]) for each in ranking.results)
    assert len((await cluster.rerank("the cat", documents)).results) == 100


async def test_documents_that_are_too_long_are_cut_as_by_the_reference(cluster: Cluster) -> None:
    query, document = _CUT
    ranking = await cluster.rerank(query, [document, "b"])
    scores = {each.index: each.score for each in ranking.results}
    assert scores[0] == _near(_REFERENCE_OF_CUT)
    assert ranking.warnings == ("texts of more than 512 tokens were cut",)
    cut = await cluster.embed(["b", document], model="plain", truncate=True)
    assert cut.warnings == ("texts of more than 256 tokens were cut",)
    with pytest.raises(
        ClusterError, match=r"^input\.1: with the query \d+ tokens; .* 512$"
    ) as told:
        await cluster.score(query, ["b", document])
    assert told.value.code == "context_length_exceeded"
    for words in (509, 700):  # three tokens are special
        with pytest.raises(ClusterError, match=r"^query: \d+ tokens") as told:
            await cluster.rerank("paper " * words, [document])
        assert told.value.code == "context_length_exceeded"
    await cluster.rerank("paper " * 508, [document])


async def test_embeddings_rank_where_the_settings_say_so_and_it_is_told(cluster: Cluster) -> None:
    documents = random_inputs(80, seed=3)
    ranking = await cluster.rerank("a river under paper", documents, model="minilm")
    assert ranking.warnings == (RANKED_BY_EMBEDDINGS,)
    query, *others = (await cluster.embed(["a river under paper", *documents])).vectors
    cosines = [sum(a * b for a, b in zip(query, each, strict=True)) for each in others]
    assert [each.score for each in ranking.results] == pytest.approx(
        sorted(cosines, reverse=True), abs=1e-4
    )
    with pytest.raises(ClusterError, match="rerank") as told:
        await cluster.rerank("a river", documents, model="plain")
    assert told.value.code == "not_supported"


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"model": "tiny"}, "not_supported", "rerank"),
        ({"query": ["a"]}, "invalid_request", "1 queries for 2 texts"),
        ({"query": ""}, "invalid_request", "query"),
        ({"dimensions": 3}, "invalid_request", "dimensions"),
        ({"prompt_name": "query"}, "invalid_request", "prompt_name"),
        ({"input": [[1], [2]]}, "invalid_request", "not tokens"),
        ({"input": None, "prompt": "a"}, "invalid_request", "query"),
        ({"n": 2}, "invalid_request", "n: "),
        ({"model": "labels"}, "model_unavailable", "3 labels"),
    ],
)
async def test_what_cannot_be_scored_is_refused(
    cluster: Cluster, fields: dict[str, Any], code: str, said: str
) -> None:
    body = {"query": "a", "input": ["b", "c"], "skill": "rerank", **fields}
    given = {name: value for name, value in body.items() if value is not None}
    with pytest.raises((ClusterError, InvalidRequest), match=said) as told:
        await cluster.stream(**given).collect()
    assert told.value.code == code


async def test_a_reranker_neither_embeds_nor_generates(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="embedding") as told:
        await cluster.embed("a", model="reranker")
    assert told.value.code == "not_supported"
    with pytest.raises(ClusterError, match="scores texts only") as told:
        await cluster.generate("a", model="reranker")
    assert told.value.code == "not_supported"


async def test_a_killed_worker_costs_no_score_and_none_comes_twice(
    cluster: Cluster, process: ClusterProcess
) -> None:
    scored: Counter[int] = Counter()
    killed = False
    documents = random_inputs(1500, seed=4)
    async with cluster.stream(
        input=documents, query="the engine", skill="rerank", timeout_ms=300_000
    ) as stream:
        async for output in stream:
            assert output.score is not None and output.finish_reason == "stop"
            scored[output.choice] += 1
            if len(scored) > 200 and not killed:
                killed = True
                process.member("worker-2").kill()
    assert killed
    assert scored == Counter(range(1500))


async def test_rankings_over_http_have_the_form_of_cohere_and_jina(
    cluster: Cluster, process: ClusterProcess
) -> None:
    documents = ["Paris is in France.", {"text": "Berlin is in Germany."}, "the cat"]
    body = {"query": "capital of france", "documents": documents, "top_n": 2}
    async with httpx.AsyncClient(base_url=process.ready["http_url"]) as http:
        first = (await http.post("/v1/rerank", json=body)).json()
        second = (await http.post("/v2/rerank", json={**body, "return_documents": True})).json()
        by_embeddings = (await http.post("/v1/rerank", json={**body, "model": "minilm"})).json()
    assert [each["index"] for each in first["results"]] == [1, 0]
    assert [each["relevance_score"] for each in first["results"]] == _near([0.7031287, 0.6688617])
    assert first["model"] == "rerank" and first["usage"]["total_tokens"] > 20
    assert first["meta"] == {
        "api_version": {"version": "1"}, "billed_units": {"search_units": 1},
    }  # fmt: skip
    assert second["meta"]["api_version"] == {"version": "2"}
    assert second["results"][1]["document"] == {"text": "Paris is in France."}
    assert by_embeddings["meta"]["warnings"] == [RANKED_BY_EMBEDDINGS]
    assert by_embeddings["results"][0]["index"] == 0, "these scores mean something"


async def test_scores_over_http_have_the_form_of_vllm(
    cluster: Cluster, process: ClusterProcess
) -> None:
    async with httpx.AsyncClient(base_url=process.ready["http_url"]) as http:

        async def scores(one: Any, two: Any, **fields: Any) -> list[float]:
            answer = await http.post("/v1/score", json={"text_1": one, "text_2": two, **fields})
            body = answer.raise_for_status().json()
            assert [each["index"] for each in body["data"]] == list(range(len(body["data"])))
            return [each["score"] for each in body["data"]]

        assert await scores("a", "b") == _near([0.4998824])
        assert await scores(["a"], ["b", "b"]) == _near([0.4998824] * 2)
        pairs = list(_REFERENCES)
        assert await scores([q for q, _ in pairs], [t for _, t in pairs]) == _near(
            list(_REFERENCES.values())
        )
        assert await scores(*_CUT, truncate=True) == _near([_REFERENCE_OF_CUT])
        bad = await http.post("/v1/score", json={"text_1": ["a", "b"], "text_2": "c"})
        assert bad.status_code == 400 and "2 texts for 1" in bad.json()["error"]["message"]
        bad = await http.post("/v1/score", json={"text_1": _CUT[0], "text_2": ["b", _CUT[1]]})
        assert bad.status_code == 400 and bad.json()["error"]["param"] == "input.1"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": [""]}, "documents"),
        ({"documents": [{"title": "a"}]}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"model": "nobody"}, "model"),
    ],
)
async def test_bad_bodies_are_refused_with_the_field(
    process: ClusterProcess, change: dict[str, Any], param: str
) -> None:
    body = {"query": "a", "documents": ["b"], **change}
    async with httpx.AsyncClient(base_url=process.ready["http_url"]) as http:
        answer = await http.post("/v1/rerank", json=body)
    assert answer.status_code in (400, 404)
    assert str(answer.json()["error"]["param"]).startswith(param)


async def test_lines_are_ranked_in_the_shell(cluster: Cluster, process: ClusterProcess) -> None:
    command = ("run", "--nats", process.url, "--model", "minilm", "--rerank", "city in france")
    told = await run(*command, "-", said="Berlin is in Germany.\nParis is in France.\n")
    assert [line.split("  ")[1] for line in told.out.splitlines()] == [
        "Paris is in France.", "Berlin is in Germany.",
    ]  # fmt: skip
    assert RANKED_BY_EMBEDDINGS in told.err


_LITELLM = """
import json, sys, litellm
url = sys.argv[1]
vectors = litellm.embedding(
    model="openai/embed", input=["a", "b"], api_base=url + "/v1", api_key="x",
)
found = {"dimensions": [len(each["embedding"]) for each in vectors.data]}
for provider in ("cohere", "jina_ai"):
    ranking = litellm.rerank(
        model=f"{provider}/minilm", query="city in france", top_n=1, api_key="x",
        documents=["Berlin is in Germany.", "Paris is in France."], api_base=url + "/v1/rerank",
    )
    found[provider] = [each["index"] for each in ranking.results]
print(json.dumps(found))
"""


async def test_litellm_embeds_and_ranks(
    cluster: Cluster, process: ClusterProcess, tmp_path: Path
) -> None:
    own = environment(tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
    python = program("litellm", "python")
    done = run_program([python, "-c", _LITELLM, process.ready["http_url"]], own)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"dimensions": [384, 384], "cohere": [1], "jina_ai": [1]}


async def test_llm_embeds_under_the_name_of_an_openai_model(
    cluster: Cluster, process: ClusterProcess, tmp_path: Path
) -> None:
    url = f"{process.ready['http_url']}/v1"
    own = environment(tmp_path, OPENAI_BASE_URL=url, OPENAI_API_KEY="x")
    done = run_program([program("llm", "llm"), "embed", "-m", "3-small", "-c", "a cat"], own)
    assert done.returncode == 0, done.stderr
    (vector,) = (await cluster.embed("a cat", model="plain")).vectors
    assert json.loads(done.stdout) == pytest.approx(vector, abs=1e-4)
