"""Names that programs insist on, standing for a model or a skill."""

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.long_answers import CHAT, QUESTION
from tests.processes import ClusterProcess

_MODEL = "tiny"
_ALIASES = {"gpt-4o-mini": _MODEL, "claude-that-is-asked-for": "chat", "gpt-lost": "nowhere"}
_ASKED = {"messages": QUESTION["messages"], "max_tokens": 4}


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> dict[str, str]:
    """By what they are for: all, the model alone, one alias alone, something else."""
    limits = {"all": None, "model": _MODEL, "alias": "gpt-4o-mini", "other": "another"}
    return {
        client: make_key(keys_file, client, *(["--model", model] if model else []))
        for client, model in limits.items()
    }


@pytest.fixture(scope="module")
def aliased(
    tiny_cluster: ClusterProcess, keys_file: Path, keys: dict[str, str]
) -> Iterator[GatewayProcess]:
    settings = {"CLUSTER__GATEWAY__MODEL_ALIASES": json.dumps(_ALIASES)}
    arguments = ("--keys-file", str(keys_file))
    with gateway_process(tiny_cluster.url, *arguments, settings=settings) as process:
        yield process


def _status(gateway: GatewayProcess, key: str, model: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    body = _ASKED | {"model": model}
    return httpx.post(gateway.url + CHAT, json=body, headers=headers, timeout=60).status_code


def _listed(gateway: GatewayProcess, key: str) -> set[str]:
    headers = {"x-api-key": key}
    listed = httpx.get(f"{gateway.url}/v1/models", headers=headers).json()["data"]
    names = {model["id"] for model in listed}
    for name in {*_ALIASES, _MODEL, "chat"}:
        found = httpx.get(f"{gateway.url}/v1/models/{name}", headers=headers).status_code
        assert found == (200 if name in names else 404), name
    return names


def test_who_insists_on_openais_names_is_served_and_told_its_own_name(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    with openai.OpenAI(base_url=f"{aliased.url}/v1", api_key=keys["all"]) as client:
        asked = {**_ASKED, "model": "gpt-4o-mini"}
        assert client.chat.completions.create(**asked).model == "gpt-4o-mini"
        chunks = list(client.chat.completions.create(**asked, stream=True))
    assert {chunk.model for chunk in chunks} == {"gpt-4o-mini"}


def test_who_insists_on_anthropics_names_is_too(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    with anthropic.Anthropic(base_url=aliased.url, api_key=keys["all"]) as client:
        asked = {**_ASKED, "model": "claude-that-is-asked-for"}
        assert client.messages.create(**asked).model == "claude-that-is-asked-for"
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_message().model == "claude-that-is-asked-for"


def test_a_request_that_names_no_model_is_told_which_was_asked(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    with openai.OpenAI(base_url=f"{aliased.url}/v1", api_key=keys["all"]) as client:
        answer = client.post("/chat/completions", body=_ASKED, cast_to=openai.types.Completion)
    assert answer.model == "chat"


def test_an_alias_of_nothing_is_an_unknown_model(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    with openai.OpenAI(base_url=f"{aliased.url}/v1", api_key=keys["all"]) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(**{**_ASKED, "model": "gpt-lost"})
    assert missing.value.code == "model_not_found" and "'gpt-lost'" in str(missing.value)


def test_aliases_are_listed_beside_what_they_stand_for(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    assert _listed(aliased, keys["all"]) == {_MODEL, "chat", *_ALIASES} - {"gpt-lost"}


def test_a_key_for_a_model_is_one_for_its_aliases(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    key = keys["model"]
    assert [_status(aliased, key, name) for name in (_MODEL, "gpt-4o-mini")] == [200, 200]
    assert [_status(aliased, key, name) for name in ("chat", "claude-that-is-asked-for")] == [
        403,
        403,
    ]
    assert _listed(aliased, key) == {_MODEL, "gpt-4o-mini"}


def test_a_key_for_an_alias_is_for_that_name_alone(
    aliased: GatewayProcess, keys: dict[str, str]
) -> None:
    key = keys["alias"]
    assert [_status(aliased, key, name) for name in ("gpt-4o-mini", _MODEL, "chat")] == [
        200, 403, 403,
    ]  # fmt: skip
    assert _listed(aliased, key) == {"gpt-4o-mini"}
    assert _listed(aliased, keys["other"]) == set()
    assert _status(aliased, keys["other"], "gpt-4o-mini") == 403
