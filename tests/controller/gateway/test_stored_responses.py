"""Responses that are stored, read back and gone on from, through the official `openai` client."""

import asyncio
import contextlib
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList

from shared.bus import Bus, ObjectStore
from shared.subjects import RESPONSES_BUCKET
from tests.access.roles import as_tester, environment
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.scripts import THOUGHT, make_assistant
from tests.processes import SCRIPTS, ClusterProcess, NatsProcess, cluster_process, wait_for

_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": None}
    for name in ("get_weather", "now")
]
_TURNS = 50


@pytest.fixture(scope="module")
def settings(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = make_assistant(tmp_path_factory.mktemp("models") / "scripted", demo_folder)
    source = {"path": str(folder), "trust_remote_code": True}
    return {
        "CLUSTER__SKILLS": json.dumps({"chat": ["scripted"]}),
        "CLUSTER__MODELS": json.dumps({"scripted": source}),
        "CLUSTER__WORKER__MODELS": json.dumps(["scripted"]),
    }


@pytest.fixture(scope="module")
def cluster(settings: dict[str, str]) -> Iterator[ClusterProcess]:
    with cluster_process(settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    with gateway_process(cluster.url) as process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as client:
        yield client


def client_of(gateway: GatewayProcess, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


def ask(client: openai.OpenAI, asked: Any, **fields: Any) -> Response:
    response: Response = client.responses.create(model="chat", input=asked, **fields)
    return response


def call_ids(response: Response) -> list[str]:
    return [item.call_id for item in response.output if item.type == "function_call"]


def item_ids(response: Response) -> list[str]:
    output: Any = response.to_dict()["output"]
    return [item["id"] for item in output]


def result_of(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "4711"}


def is_stored(response: Response) -> bool:
    return response.to_dict()["store"] is True


def test_a_conversation_goes_on_from_the_last_response(client: openai.OpenAI) -> None:
    called = ask(client, "one call, please", tools=_TOOLS)
    assert is_stored(called)
    result: Any = result_of(call_ids(called)[0])
    answer = ask(client, [result], tools=_TOOLS, previous_response_id=called.id)
    assert (answer.output_text, answer.previous_response_id) == ("It is warm.", called.id)
    sent: Any = [
        {"role": "user", "content": "one call, please"},
        *(item.to_dict() for item in called.output),
        result,
    ]
    whole = ask(client, sent, tools=_TOOLS)
    assert answer.usage is not None and whole.usage is not None
    assert answer.usage.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_is_read_back_is_what_was_told(client: openai.OpenAI, streamed: bool) -> None:
    if streamed:
        *_, last = client.responses.create(model="chat", input="two calls", stream=True)
        told: Response = last.response  # type: ignore[union-attr]
    else:
        told = ask(client, "two calls")
    assert client.responses.retrieve(told.id).to_dict() == told.to_dict()


def test_items_are_found_by_what_refers_to_them(client: openai.OpenAI) -> None:
    """As the AI SDK sends what it knows to be stored."""
    called = ask(client, "one call, please", tools=_TOOLS)
    history: Any = [
        {"role": "user", "content": "one call, please"},
        *({"type": "item_reference", "id": item} for item in item_ids(called)),
        result_of(call_ids(called)[0]),
    ]
    assert ask(client, history, tools=_TOOLS).output_text == "It is warm."
    gone_on = ask(client, history, tools=_TOOLS)
    answer = ask(client, "nine", tools=_TOOLS, previous_response_id=gone_on.id)
    listed = list(client.responses.input_items.list(answer.id, order="asc"))
    assert [item.type for item in listed] == [
        "message", "reasoning", "function_call", "function_call_output", "reasoning", "message",
        "message",
    ]  # fmt: skip
    again: Any = [{"type": "item_reference", "id": item_ids(called)[1]}, *history[-1:]]
    once = ask(client, again, tools=_TOOLS, previous_response_id=called.id)
    result = history[-1:]
    twice = ask(client, result, tools=_TOOLS, previous_response_id=called.id)
    assert once.usage is not None and twice.usage is not None
    assert once.usage.input_tokens == twice.usage.input_tokens
    kinds = [item.type for item in client.responses.input_items.list(once.id)]
    assert kinds == ["function_call_output", "function_call", "reasoning", "message"]
    history[1]["id"] = f"rs_{uuid.uuid4().hex[:24]}_0"
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, history, tools=_TOOLS)
    assert caught.value.param == "input.1.id"


def test_what_was_asked_is_listed_by_pages(client: openai.OpenAI) -> None:
    first = ask(client, "two calls", instructions="Be brief.", tools=_TOOLS)
    results: Any = [result_of(call_id) for call_id in call_ids(first)]
    second = ask(client, results, tools=_TOOLS, previous_response_id=first.id)
    listed = client.responses.input_items.list(second.id, order="asc", limit=3)
    whole = [item.to_dict() for item in listed]  # all pages
    kinds = [item["type"] for item in whole]
    assert kinds == ["message", "reasoning", "message", *["function_call"] * 2,
                     *["function_call_output"] * 2]  # fmt: skip
    assert [item.to_dict() for item in client.responses.input_items.list(second.id)] == whole[::-1]
    assert len({item["id"] for item in whole}) == len(whole)


def test_lists_are_those_of_the_api(gateway: GatewayProcess, client: openai.OpenAI) -> None:
    first = ask(client, "two calls")
    url = f"{gateway.url}/v1/responses/{first.id}/input_items"
    ResponseItemList.model_validate(httpx.get(url, params={"order": "asc"}).json(), strict=True)
    limits = ("0", "x", "101", "1" + "0" * 5000, "000000001" + "0" * 5000, "٣", "")
    for wrong in (*({"limit": each} for each in limits), {"order": "up"}, {"after": "x"}):
        answer = httpx.get(url, params=wrong)
        assert answer.status_code == 400 and answer.json()["error"]["param"] in wrong


def test_what_is_deleted_or_was_not_to_be_stored_is_not_found(client: openai.OpenAI) -> None:
    deleted, private = ask(client, "nine"), ask(client, "nine", store=False)
    assert not is_stored(private)
    client.responses.delete(deleted.id)
    for missing in (deleted.id, private.id, "resp_x", "..%2F..", f"resp_{'0' * 24}"):
        works: list[Callable[[str], Any]] = [
            client.responses.retrieve, client.responses.delete, client.responses.input_items.list,
        ]  # fmt: skip
        for work in works:
            with pytest.raises(openai.NotFoundError):
                work(missing)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "nine", previous_response_id=deleted.id)
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"
    assert "not found" in caught.value.message


def test_items_are_listed_as_they_were_sent_each_under_an_id_of_its_own(
    client: openai.OpenAI,
) -> None:
    part = {"type": "input_text", "text": "nine"}
    sent: Any = [
        {"role": "user", "content": [part, part], "id": "msg_1"},
        {"role": "assistant", "content": "It is", "id": "msg_1", "status": "incomplete"},
        {"type": "web_search_call", "id": "msg_1", "status": "completed", "action": {}},
        {"role": "user", "content": [part], "id": "msg_2"},
    ]
    first = ask(client, sent)
    second = ask(client, sent, previous_response_id=first.id)
    pages = client.responses.input_items.list(second.id, order="asc", limit=1)
    listed: Any = [item.to_dict() for item in pages]
    kinds = [item["type"] for item in listed]
    turn = ["message", "message", "web_search_call", "message"]
    assert kinds == [*turn, "reasoning", "message", *turn]
    assert len({item["id"] for item in listed}) == len(listed)
    assert listed[0]["content"] == [part, part]
    assert listed[1]["status"] == "incomplete"
    assert listed[1]["content"][0]["type"] == "output_text"


def test_log_probabilities_are_no_part_of_a_conversation(client: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    told = ask(client, "nine", include=include, top_logprobs=20)
    read = client.responses.retrieve(told.id)
    assert read.to_dict() == told.to_dict() and "top_logprobs" in told.to_json()
    answer = ask(client, "nine", previous_response_id=told.id)
    listed = "".join(item.to_json() for item in client.responses.input_items.list(answer.id))
    assert THOUGHT in listed
    assert "top_logprobs" not in listed and "encrypted_content" not in listed


def test_a_chain_of_many(client: openai.OpenAI) -> None:
    last, tokens = None, 0
    for turn in range(_TURNS):
        answer = ask(client, f"{turn}: nine", previous_response_id=last)
        assert answer.output_text == "It is nine." and answer.usage is not None
        assert answer.usage.input_tokens > tokens
        last, tokens = answer.id, answer.usage.input_tokens
    assert last is not None
    listed = list(client.responses.input_items.list(last, order="asc", limit=100))
    asked: Any = [item.to_dict() for item in listed if item.type == "message"]
    texts = [item["content"][0]["text"] for item in asked if item["role"] == "user"]
    assert texts == [f"{turn}: nine" for turn in range(_TURNS)]


def test_it_is_read_back_after_a_restart_of_all(
    cluster: ClusterProcess, client: openai.OpenAI
) -> None:
    told = ask(client, "one call, please", tools=_TOOLS)
    (server,) = (each for each in cluster.processes() if each.name() == "nats-server")
    server.kill()
    server.wait()
    with gateway_process(cluster.url) as another, client_of(another) as later:
        wait_for(lambda: httpx.get(f"{another.url}/ready").status_code == 200, "it is ready")
        assert later.responses.retrieve(told.id).to_dict() == told.to_dict()
        result: Any = result_of(call_ids(told)[0])
        answer = ask(later, [result], tools=_TOOLS, previous_response_id=told.id)
        assert answer.output_text == "It is warm."


def test_another_keys_response_is_not_found(cluster: ClusterProcess, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    keys = [make_key(file, client) for client in ("ada", "bob")]
    with gateway_process(cluster.url, "--keys-file", str(file)) as gateway:
        ada, bob = (client_of(gateway, key) for key in keys)
        told = ask(ada, "nine")
        assert ada.responses.retrieve(told.id).id == told.id
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(told.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.delete(told.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            ask(bob, "nine", previous_response_id=told.id)
        reference: Any = [{"type": "item_reference", "id": item_ids(told)[0]}]
        with pytest.raises(openai.NotFoundError):
            ask(bob, reference)
        assert ask(ada, "nine", previous_response_id=told.id).output_text == "It is nine."


def test_what_another_version_stored_is_no_fault(
    cluster: ClusterProcess, client: openai.OpenAI
) -> None:
    """A field more is passed over; what cannot be read at all is told so."""

    async def change(response_id: str, change: Callable[[Any], Any]) -> None:
        bus = await Bus.connect(as_tester(cluster.url), name="test", wait_s=10)
        store = ObjectStore(bus, RESPONSES_BUCKET, max_bytes=1_000_000_000, max_age_s=2_592_000)
        name = f"local/{response_id}/items"
        data = await store.get(name)
        assert data is not None
        await store.put(name, json.dumps(change(json.loads(data))).encode())
        await bus.close()

    told = ask(client, "nine")

    def add_fields(turn: Any) -> Any:
        turn["output"][1]["content"][0]["more"] = 1
        turn["input"][0]["more"] = 1
        return turn | {"more": 1}

    asyncio.run(change(told.id, add_fields))
    assert ask(client, "nine", previous_response_id=told.id).output_text == "It is nine."
    wrong: list[Callable[[Any], Any]] = [
        lambda turn: turn | {"output": [{"type": "message", "id": "x"}]},
        lambda turn: turn | {"output": [{"type": "message"}]},
        lambda turn: turn | {"output": 1},
        lambda _: {"input": []},
        lambda _: [],
    ]
    for each in wrong:
        told = ask(client, "nine")
        asyncio.run(change(told.id, each))
        with pytest.raises(openai.InternalServerError) as caught:
            ask(client, "nine", previous_response_id=told.id)
        assert caught.value.code == "store_unavailable"


def test_a_full_store_keeps_what_it_has_and_answers_all(settings: dict[str, str]) -> None:
    small = {"CLUSTER__GATEWAY__RESPONSES__MAX_BYTES": "400000"}
    with (
        cluster_process(settings=settings) as cluster,
        gateway_process(cluster.url, settings=small) as gateway,
        client_of(gateway) as client,
    ):
        first = ask(client, "nine")
        answers = [ask(client, f"nine {'x' * 50_000}") for _ in range(10)]
        assert is_stored(first) and not is_stored(answers[-1])
        assert all(answer.output_text == "It is nine." for answer in answers)
        assert client.responses.retrieve(first.id).id == first.id
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answers[-1].id)
        for answer in filter(is_stored, answers):
            client.responses.delete(answer.id)
        assert is_stored(ask(client, "nine"))
        lines = httpx.get(f"{gateway.url}/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("mlx_gateway_stored_responses_total")]
        assert {'result="stored"' in line for line in counted} == {True, False}


def test_nothing_is_stored_where_that_is_turned_off(cluster: ClusterProcess) -> None:
    settings = {"CLUSTER__GATEWAY__RESPONSES__STORE": "false"}
    with gateway_process(cluster.url, settings=settings) as gateway, client_of(gateway) as client:
        told = ask(client, "nine")
        assert (told.output_text, is_stored(told)) == ("It is nine.", False)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(told.id)


@contextlib.contextmanager
def _without_jetstream(folder: Path, settings: dict[str, str]) -> Iterator[str]:
    """A cluster whose NATS server keeps nothing; its URL."""
    with NatsProcess(folder, secured=False) as server, contextlib.ExitStack() as stack:
        server.kill()
        server.store = None
        server.start()
        for role, name in (("controller", "c-1"), ("worker", "worker-1")):
            command = [str(SCRIPTS / role), "--nats", server.url, "--id", name]
            variables = environment(role, name, server.url)  # type: ignore[arg-type]
            process = stack.enter_context(
                subprocess.Popen(command, env=variables | settings, stderr=subprocess.DEVNULL)
            )
            stack.callback(process.terminate)
        yield server.url


def test_without_jetstream_only_what_is_stored_is_missing(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with (
        _without_jetstream(tmp_path, settings) as url,
        gateway_process(url) as gateway,
        client_of(gateway) as client,
    ):
        wait_for(lambda: httpx.get(f"{gateway.url}/ready").status_code == 200, "it is ready")
        told = ask(client, "nine")
        assert (told.output_text, is_stored(told)) == ("It is nine.", False)
        with pytest.raises(openai.InternalServerError) as caught:
            ask(client, "nine", previous_response_id=told.id)
        assert caught.value.code == "store_unavailable"
