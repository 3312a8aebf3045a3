"""Reasoning, tool calls and schemas from end to end: a cluster whose models follow scripts, asked
by the client library and by commands."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from shared.client import Cluster, connect
from shared.errors import InvalidAnswer, StreamFailed
from tests.access.roles import as_client
from tests.processes import ClusterProcess, cluster_process
from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from tests.shared.cli.simulated_cluster import run

pytestmark = pytest.mark.anyio

THOUGHT = "<think>\nHm, 2 < 3.\n</think>\n\n"
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
)
PARIS = '{"name": "Paris", "people": 2100000}'
SCRIPTS = {
    "the weather": f"{THOUGHT}{CALL}",
    "4711": f"{THOUGHT}It is warm.",
    "about Paris": THOUGHT + PARIS,
    "no thought": "<think>\n\n</think>\n\nIt is nine.",
    "the time": f"{THOUGHT}It is nine.",
}
SPOKEN_SCRIPTS = {"the time": "Hm.\n</think>\n\nIt is nine."}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]


class City(BaseModel):
    name: str
    people: int


@pytest.fixture(scope="module")
def process(
    demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """Of two models: one thinks unless it is told not to, the other always."""
    models = {}
    for name, family, scripts in (
        ("thinker", "hermes", SCRIPTS),
        ("stubborn", "hermes, thinking opened", SPOKEN_SCRIPTS),
    ):
        folder = tmp_path_factory.mktemp("scripted") / name
        make_scripted_model(folder, demo_folder, TEMPLATES[family], scripts)
        models[name] = {"path": str(folder), "trust_remote_code": True}
    settings = {
        "CLUSTER__MODELS": json.dumps(models),
        "CLUSTER__SKILLS": json.dumps({"chat": list(models)}),
    }
    with cluster_process(settings=settings) as running:
        yield running


@pytest.fixture
async def cluster(process: ClusterProcess) -> AsyncIterator[Cluster]:
    async with connect(as_client(process.url)) as connected:
        yield connected


async def test_reasoning_and_a_call_come_in_pieces_and_are_whole_at_the_end(
    cluster: Cluster,
) -> None:
    thoughts, arguments = [], []
    async with cluster.stream("What is the weather?", tools=TOOLS, temperature=0) as stream:
        async for chunk in stream:
            thoughts.append(chunk.reasoning or "")
            arguments += [piece["function"]["arguments"] for piece in chunk.tool_calls or []]
            assert stream.reasoning.startswith("".join(thoughts))
            for call in stream.tool_calls:
                assert call["function"]["arguments"].startswith("".join(arguments))
    (call,) = stream.tool_calls
    assert stream.reasoning == "".join(thoughts) == "Hm, 2 < 3."
    assert stream.text == ""
    assert call["function"]["name"] == "get_weather" and call["id"].startswith("call_")
    assert json.loads("".join(arguments)) == {"city": "Rome", "days": 2}
    assert len(arguments) > 3 and stream.finish_reason == "tool_calls"


async def test_a_call_is_answered_and_the_conversation_goes_on(cluster: Cluster) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather?"}]
    answer = await cluster.generate(messages, tools=TOOLS, tool_choice="required", temperature=0)
    (call,) = answer.tool_calls
    assert answer.reasoning == "Hm, 2 < 3." and answer.usage.reasoning_tokens > 0
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4711 degrees"}
    messages += [answer.message, result]
    end = await cluster.generate(messages, tools=TOOLS, temperature=0)
    assert (end.text, end.tool_calls, end.finish_reason) == ("It is warm.", [], "stop")


async def test_the_result_of_a_call_may_come_alone_in_a_session(cluster: Cluster) -> None:
    fields: dict[str, Any] = {"session_id": "weather", "tools": TOOLS, "temperature": 0}
    asked = [{"role": "user", "content": "What is the weather?"}]
    answer = await cluster.generate(asked, **fields)
    (call,) = answer.tool_calls
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4711 degrees"}
    end = await cluster.generate([result], history="kept", **fields)
    whole = await cluster.generate([*asked, answer.message, result], tools=TOOLS, temperature=0)
    assert (end.text, end.usage.prompt_tokens) == ("It is warm.", whole.usage.prompt_tokens)


async def test_an_answer_is_an_instance_of_the_model_asked_for(cluster: Cluster) -> None:
    city = await cluster.generate("Tell me about Paris.", schema=City, temperature=0)
    assert city == City(name="Paris", people=2_100_000)
    schema = City.model_json_schema()
    value = await cluster.generate("Tell me about Paris.", schema=schema, temperature=0)
    assert value == {"name": "Paris", "people": 2_100_000}


@pytest.mark.parametrize("tokens", [3, 30])
async def test_an_answer_that_breaks_off_says_so(cluster: Cluster, tokens: int) -> None:
    with pytest.raises(InvalidAnswer, match=f"after {tokens} tokens, .* reasoning: give") as caught:
        await cluster.generate(
            "Tell me about Paris.", schema=City, temperature=0, max_tokens=tokens
        )
    assert caught.value.code == "answer_incomplete"
    assert PARIS.startswith(caught.value.text)


async def test_a_schema_that_cannot_be_enforced_is_refused_with_its_path(cluster: Cluster) -> None:
    class Unlike(BaseModel):
        model_config = {"json_schema_extra": {"not": {"required": ["x"]}}}

        name: str

    with pytest.raises(StreamFailed, match="not") as caught:
        await cluster.generate("Tell me about Paris.", schema=Unlike)
    assert caught.value.code == "invalid_request"
    assert caught.value.param == "response_format.json_schema.schema"


# The commands


async def asked(process: ClusterProcess, *arguments: str) -> dict[str, Any]:
    flags = ("--json", "--temperature", "0", "--nats", process.url)
    ran = await run("run", *flags, *arguments, role="client")
    assert ran.status == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


async def test_run_prints_content_alone_and_reasoning_as_json(process: ClusterProcess) -> None:
    ran = await run("run", "--nats", process.url, "What is the time?", role="client")
    assert (ran.status, ran.out) == (0, "It is nine.\n")
    assert "Hm" not in ran.err and "of reasoning)" in ran.err
    answer = await asked(process, "What is the time?")
    assert (answer["text"], answer["reasoning"]) == ("It is nine.", "Hm, 2 < 3.")
    assert answer["tool_calls"] == answer["warnings"] == []


async def test_run_with_a_schema_streams_json(process: ClusterProcess, tmp_path: Path) -> None:
    file = tmp_path / "city.json"
    file.write_text(json.dumps(City.model_json_schema()))
    arguments = ("run", "--schema", str(file), "--nats", process.url, "Tell me about Paris.")
    ran = await run(*arguments, role="client")
    assert (ran.status, ran.out) == (0, PARIS + "\n")
    ran = await run(*arguments, "--max-tokens", "30", role="client")
    assert ran.status == 1 and PARIS.startswith(ran.out.strip())
    assert "error: the answer broke off after 30 tokens" in ran.err
    file.write_text('{"type": "object", "properties": {"x": {"not": {}}}}')
    ran = await run(*arguments, role="client")
    assert (ran.status, ran.out) == (2, "")
    assert f"error: --schema: {file}: schema" in ran.err and "not" in ran.err


async def test_thinking_is_turned_off_where_it_can_be(process: ClusterProcess) -> None:
    """Then the end of the thought is in the prompt, so that the model does not say it."""
    thinking = await asked(process, "no thought")
    silent = await asked(process, "--no-think", "no thought")
    assert thinking["text"] == silent["text"] == "It is nine."
    assert silent["usage"]["prompt_tokens"] > thinking["usage"]["prompt_tokens"]
    assert silent["usage"]["completion_tokens"] < thinking["usage"]["completion_tokens"]
    assert silent["warnings"] == []


async def test_where_thinking_cannot_be_turned_off_a_warning_says_so(
    process: ClusterProcess,
) -> None:
    arguments = ("--model", "stubborn", "--no-think", "What is the time?")
    warning = "reasoning_effort: thinking cannot be turned off for this model"
    assert (await asked(process, *arguments))["warnings"] == [warning]
    ran = await run("run", "--nats", process.url, *arguments, role="client")
    assert f"warning: {warning}\n" in ran.err and ran.out == "It is nine.\n"


async def test_workers_name_what_each_model_can(cluster: Cluster) -> None:
    await cluster.generate("What is the time?", model="thinker", temperature=0)
    (report,) = (await cluster.health()).workers
    (thinker,) = (model for model in report.models if model.id == "thinker")
    assert thinker.abilities == ["tools", "schema", "reasoning", "continuation"]
