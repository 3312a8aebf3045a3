"""Programs that others wrote for OpenAI's and Anthropic's services, as they are: llm, litellm."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.controller.gateway.programs import environment, program, run
from tests.processes import ClusterProcess, wait_for

_QUESTION = "What is the capital of France?"
_PARIS = "The capital of France is Paris."
_APIS = ("openai", "anthropic")
_CALLS = Path(__file__).parents[2] / "programs" / "litellm_calls.py"


class Llm:
    """llm of a user whose file of models names those of a gateway."""

    def __init__(self, home: Path, gateway: GatewayProcess, **fields: str) -> None:
        folder = home / "llm"
        folder.mkdir()
        models = [
            {"model_id": own, "model_name": name, "api_base": f"{gateway.url}/v1", **fields}
            for own, name in (("demo", "demo"), ("tiny", "chat"), ("gone", "gpt-17"))
        ]
        (folder / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
        self.environment = environment(home, LLM_USER_PATH=str(folder))

    def command(self, *arguments: str) -> list[str]:
        return [program("llm", "llm"), *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(self.command(*arguments), self.environment)


@pytest.fixture
def llm(tmp_path: Path, demo_gateway: GatewayProcess) -> Llm:
    return Llm(tmp_path, demo_gateway)


@pytest.fixture(scope="module")
def keyed(
    tiny_cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, Mapping[str, str]]]:
    """A gateway, and its keys."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    limits: dict[str, list[str]] = {"ada": [], "once": ["--requests-per-minute", "1"]}
    keys = {client: make_key(file, client, *given) for client, given in limits.items()}
    with gateway_process(tiny_cluster.url, "--keys-file", str(file)) as process:
        yield process, keys


# llm


def test_llm_says_the_same_streamed_and_at_once(llm: Llm) -> None:
    for how in ([], ["--no-stream"]):
        done = llm.run("-m", "demo", *how, "--usage", "-o", "temperature", "0", _QUESTION)
        assert (done.returncode, done.stdout) == (0, f"{_PARIS}\n"), done.stderr
        assert "37 input, 7 output" in done.stderr


def test_llm_passes_options_and_what_comes_on_stdin(llm: Llm) -> None:
    options = ["max_tokens", "4", "top_p", "0.5", "seed", "1", "stop", "zzz"]
    pairs = [word for pair in zip(*[iter(options)] * 2, strict=True) for word in ("-o", *pair)]
    command = llm.command("-m", "demo", "-s", "Be brief.", "--usage", *pairs)
    done = run(command, llm.environment, said=_QUESTION)
    assert done.returncode == 0 and "4 output" in done.stderr, done.stderr


def test_llm_completes_plain_text(tmp_path: Path, demo_gateway: GatewayProcess) -> None:
    plain = Llm(tmp_path, demo_gateway, completion="yes")
    options = ["-o", "temperature", "0", "-o", "max_tokens", "2"]
    done = plain.run("-m", "demo", *options, "The capital of France is")
    assert done.stdout == " Paris.\n", done.stderr


def test_llm_tells_readably_what_is_wrong(llm: Llm) -> None:
    gone = llm.run("-m", "gone", _QUESTION)
    assert gone.returncode == 1
    assert "there is no 'gpt-17'; there are: chat, demo" in gone.stderr
    long = run(llm.command("-m", "demo"), llm.environment, said="word " * 20_000)
    assert long.returncode == 1 and "maximum context length" in long.stderr
    assert not any("Traceback" in done.stderr for done in (gone, long))


def test_llm_shows_its_key(keyed: tuple[GatewayProcess, Mapping[str, str]], tmp_path: Path) -> None:
    process, keys = keyed
    llm = Llm(tmp_path, process, api_key_name="cluster")
    for key in ("mlx-wrong", keys["ada"]):
        assert llm.run("keys", "set", "cluster", "--value", key).returncode == 0
        done = llm.run("-m", "tiny", "-o", "max_tokens", "4", "Hi")
        if key == "mlx-wrong":
            assert done.returncode == 1 and "401" in done.stderr
        else:
            assert done.returncode == 0, done.stderr


def test_llm_ended_frees_the_place(llm: Llm, demo_gateway: GatewayProcess) -> None:
    wait_for(lambda: demo_gateway.open_requests() == 0, "nobody else asks")
    never_ending = ["-o", "max_tokens", "1500", "-o", "logit_bias", '{"0": -100, "2": -100}']
    with subprocess.Popen(
        llm.command("-m", "demo", *never_ending, "Count to a thousand."),
        env=llm.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(lambda: demo_gateway.open_requests() == 1, "it is being answered")
        finally:
            process.terminate()  # Ctrl-C would be ignored where the tests run in the background
        assert process.wait(30) != 0
    wait_for(lambda: demo_gateway.open_requests() == 0, "it ended")


# litellm: all calls in one process, since starting it takes seconds.


def _call(api: str, gateway: GatewayProcess, model: str, **fields: Any) -> dict[str, Any]:
    asked = {
        "model": f"{api}/{model}",
        "api_base": gateway.url + ("/v1" if api == "openai" else ""),
        "api_key": "none",
        "messages": [{"role": "user", "content": _QUESTION}],
        "temperature": 0,
        "max_tokens": 20,
        "max_retries": 0,
    }
    return asked | fields


def _calls(
    api: str, demo: GatewayProcess, keyed: GatewayProcess, keys: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """By what they are about."""

    def ask(**fields: Any) -> dict[str, Any]:
        return _call(api, demo, "demo", **fields)

    def say(*lines: tuple[str, str]) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in lines]

    brief = say(("system", "Be brief."), ("user", _QUESTION))
    story, long = say(("user", "Tell a long story.")), say(("user", "word " * 20_000))
    once = _call(api, keyed, "chat", api_key=keys["once"])
    return {
        "whole": ask(),
        "streamed": ask(stream=True, stream_options={"include_usage": True}),
        "prompted": ask(messages=brief, stop=["Paris"], top_p=0.9, user="ada"),
        "unknown model": _call(api, demo, "gpt-17"),
        "wrong value": ask(temperature=9),
        "too long": ask(messages=long),
        "too late": ask(messages=story, max_tokens=1000, timeout_ms=100),
        "wrong key": _call(api, keyed, "chat", api_key="wrong"),
        "only one": once,
        "one too many": once,
    }


Outcomes = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def outcomes(
    demo_gateway: GatewayProcess,
    keyed: tuple[GatewayProcess, Mapping[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Outcomes]:
    """What came of the calls, by API."""
    calls = {api: _calls(api, demo_gateway, *keyed) for api in _APIS}
    home = tmp_path_factory.mktemp("litellm")
    seen = environment(home, LITELLM_LOCAL_MODEL_COST_MAP="True")  # else it looks on the internet
    asked = json.dumps([call for each in calls.values() for call in each.values()])
    done = run([program("litellm", "python"), str(_CALLS)], seen, said=asked)
    assert done.returncode == 0, done.stderr
    came = iter(json.loads(done.stdout.splitlines()[-1]))
    return {api: {name: next(came) for name in each} for api, each in calls.items()}


@pytest.mark.parametrize("api", _APIS)
def test_litellm_says_the_same_streamed_and_at_once(
    api: str, outcomes: Mapping[str, Outcomes]
) -> None:
    whole, streamed = outcomes[api]["whole"], outcomes[api]["streamed"]
    assert whole["text"] == streamed["text"] == _PARIS
    assert streamed["parts"] > 3
    for outcome in (whole, streamed):
        usage = outcome["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (37, 7)
    prompted = outcomes[api]["prompted"]
    assert prompted["text"] and "Paris" not in prompted["text"]


@pytest.mark.parametrize("api", _APIS)
@pytest.mark.parametrize(
    ("call", "error", "status", "words"),
    [
        ("unknown model", "NotFoundError", 404, "there is no 'gpt-17'"),
        ("wrong value", "BadRequestError", 400, "temperature"),
        ("too long", "ContextWindowExceededError", 400, ""),
        ("too late", "Timeout", 504, ""),
        ("wrong key", "AuthenticationError", 401, ""),
        ("one too many", "RateLimitError", 429, ""),
    ],
)
def test_litellm_raises_its_own_errors(
    api: str, call: str, error: str, status: int, words: str, outcomes: Mapping[str, Outcomes]
) -> None:
    outcome = outcomes[api][call]
    assert (outcome["error"], outcome["status"]) == (error, status)
    assert words in outcome["message"]
