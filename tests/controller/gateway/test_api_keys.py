"""API keys: made once, kept as hashes, read again when they change; and what they allow."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.gateway.api_keys import (
    ANONYMOUS,
    ApiKey,
    ApiKeyRing,
    hash_key,
    new_key,
    read_keys,
    write_keys,
)
from controller.gateway.service import key_ring
from shared.errors import ClusterError, SettingsError
from shared.ids import ClientName
from shared.settings.gateway import GatewaySettings
from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process, make_key
from tests.faults.asks import ENDLESS
from tests.processes import SCRIPTS, ClusterProcess, wait_for


def _entry(key: str, client: str = "ada") -> ApiKey:
    return ApiKey(client=ClientName(client), sha256=hash_key(key))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "keys.yaml"


def test_a_key_is_found_and_another_is_not(file: Path) -> None:
    key = new_key()
    write_keys(file, [_entry(key)])
    ring = ApiKeyRing(file)
    assert ring.find(key).client == "ada"
    for wrong in (None, "", "mlx-", new_key(), key[:-1], key + "x", hash_key(key)):
        with pytest.raises(ClusterError) as caught:
            ring.find(wrong)
        assert (caught.value.code, caught.value.retryable) == ("unauthenticated", False)


def test_the_file_holds_no_key_and_is_its_owners_own(file: Path) -> None:
    key = new_key()
    write_keys(file, [_entry(key)])
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]


def test_without_a_file_everybody_may_do_everything() -> None:
    ring = ApiKeyRing(None)
    assert not ring.requires_key
    assert ring.find(None) is ANONYMOUS is ring.find("anything")
    assert ANONYMOUS.admin and ANONYMOUS.client == "local"


def test_what_changes_is_read_again_and_what_is_broken_changes_nothing(file: Path) -> None:
    old, new = new_key(), new_key()
    write_keys(file, [_entry(old)])
    ring = ApiKeyRing(file)
    file.write_text("keys: 5")
    ring.refresh()
    assert ring.find(old)
    file.unlink()
    ring.refresh()
    assert ring.find(old)
    write_keys(file, [_entry(new)])
    ring.refresh()
    assert ring.find(new)
    with pytest.raises(ClusterError):
        ring.find(old)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: [{client: ada}]", "the key of ada has no sha256"),
        ("keys: [{client: 'a b', sha256: x}]", "client"),
        ("keys: [{client: ada, sha256: xyz}]", "sha256"),
        ("keys: [{client: ada, colour: red}]", "colour"),
        ("keys: [{client: ada, max_priority: top}]", "max_priority"),
        ("keys: [{client: ada, requests_per_minute: 0}]", "requests_per_minute"),
        ("keys: [{client: ada, models: []}]", "models"),
        ("- ada", "dictionary"),
        ("keys: {", "invalid YAML"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_field(file: Path, text: str, said: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_keys(file)
    assert caught.value.message.startswith(f"{file}: ") and said in caught.value.message


def test_an_empty_file_lets_nobody_in(file: Path) -> None:
    write_keys(file, [])
    ring = ApiKeyRing(file)
    assert len(ring) == 0
    with pytest.raises(ClusterError):
        ring.find(new_key())


def test_beyond_this_machine_the_keys_that_were_made_are_asked_for(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, key = tmp_path / "keys.yaml", new_key()
    monkeypatch.setattr("controller.gateway.service.default_keys_file", lambda: made)
    with pytest.raises(SettingsError, match="gateway keys add"):
        key_ring(GatewaySettings(host="0.0.0.0"))
    write_keys(made, [_entry(key)])
    assert key_ring(GatewaySettings(host="0.0.0.0")).find(key) == _entry(key)
    for open_one in (GatewaySettings(), GatewaySettings(host="0.0.0.0", allow_anonymous=True)):
        assert key_ring(open_one).find(None) == ANONYMOUS
    write_keys(file, [_entry(other := new_key(), "bob")])
    named = key_ring(GatewaySettings(host="0.0.0.0", keys_file=str(file)))
    assert named.find(other) == _entry(other, "bob")
    with pytest.raises(ClusterError):
        named.find(key)


def _run(file: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(SCRIPTS / "gateway"), "--keys-file", str(file), "keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_keys_are_made_listed_and_removed_by_command(file: Path) -> None:
    made = json.loads(_run(file, "add", "ada", "--model", "demo", "--json").stdout)
    assert made["client"] == "ada" and ApiKeyRing(file).find(made["key"]).models == ["demo"]
    grace = make_key(file, "grace", "--requests-per-minute", "5", "--max-priority", "low")
    listed = json.loads(_run(file, "list", "--json").stdout)
    assert [entry["client"] for entry in listed] == ["ada", "grace"]
    assert "grace" in _run(file, "list").stdout
    assert _run(file, "rm", hash_key(grace)[:10]).returncode == 0
    assert [key.client for key in read_keys(file)] == ["ada"]
    assert _run(file, "rm", "ada").returncode == 0
    gone = _run(file, "rm", "ada")
    assert gone.returncode == 2 and "no client" in gone.stderr
    bad = _run(file, "add", "a b")
    assert bad.returncode == 2 and "client" in bad.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_beyond_this_machine_it_does_not_listen_without_keys(host: str, tmp_path: Path) -> None:
    nobodys = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    started = subprocess.run(
        [str(SCRIPTS / "gateway"), "--host", host, "--nats", "nats://127.0.0.1:1"],
        env=nobodys,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert started.returncode == 2
    assert "keys add" in started.stderr and "--allow-anonymous" in started.stderr


# In force.


@pytest.fixture(scope="module")
def keyed(
    tiny_cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayProcess, dict[str, str]]]:
    """A gateway that asks for keys, and one key for each limit."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    limits = {
        "ada": [],
        "admin": ["--admin"],
        "other": ["--model", "another"],
        "low": ["--max-priority", "low"],
        "few": ["--requests-per-minute", "2"],
        "reader": ["--requests-per-minute", "3"],
        "short": ["--tokens-per-minute", "10"],
        "hasty": ["--tokens-per-minute", "40"],
        "busy": ["--tokens-per-minute", "100"],
        "single": ["--max-concurrent", "1"],
    }
    keys = {client: make_key(file, client, *given) for client, given in limits.items()}
    with gateway_process(tiny_cluster.url, "--keys-file", str(file)) as process:
        yield process, keys


def _ask(
    keyed: tuple[GatewayProcess, dict[str, str]], client: str, **fields: Any
) -> httpx.Response:
    process, keys = keyed
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    headers = {"authorization": f"Bearer {keys[client]}"}
    return httpx.post(
        f"{process.url}/v1/chat/completions", json=body | fields, headers=headers, timeout=60
    )


def test_with_a_key_it_answers_under_either_header(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    assert _ask(keyed, "ada").status_code == 200
    process, keys = keyed
    for headers in ({"x-api-key": keys["ada"]}, {"authorization": f"bearer  {keys['ada']}"}):
        assert httpx.get(f"{process.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer mlx-wrong"},
        {"x-api-key": "mlx-wrong"},
        {"x-api-key": "x" * 8000},
    ],
)
def test_without_a_good_key_nothing_is_told(
    keyed: tuple[GatewayProcess, dict[str, str]], headers: dict[str, str]
) -> None:
    process, _ = keyed
    for path in ("/v1/models", "/metrics"):
        answer = httpx.get(process.url + path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    message = httpx.post(f"{process.url}/v1/messages", headers=headers, content=b"not even JSON")
    assert message.status_code == 401
    assert message.json()["error"]["type"] == "authentication_error"
    for path in ("/health", "/ready", "/openapi.json"):
        assert httpx.get(process.url + path).status_code == 200


def test_what_a_key_does_not_allow_is_refused(keyed: tuple[GatewayProcess, dict[str, str]]) -> None:
    other = _ask(keyed, "other")
    assert (other.status_code, other.json()["error"]["param"]) == (403, "model")
    assert _ask(keyed, "low").status_code == 200
    assert _ask(keyed, "low", priority="background").status_code == 200
    high = _ask(keyed, "low", priority="medium")
    assert (high.status_code, high.json()["error"]["param"]) == (403, "priority")
    process, keys = keyed
    shown = httpx.get(f"{process.url}/v1/models", headers={"x-api-key": keys["other"]}).json()
    assert shown["data"] == []
    unknown = _ask(keyed, "other", model="gpt-17")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].endswith("there are: another")


def test_metrics_are_for_admins_and_name_the_clients(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    process, keys = keyed
    _ask(keyed, "ada")
    refused = httpx.get(f"{process.url}/metrics", headers={"x-api-key": keys["ada"]})
    assert refused.status_code == 403
    text = httpx.get(f"{process.url}/metrics", headers={"x-api-key": keys["admin"]}).text
    assert 'mlx_gateway_requests_total{client="ada",code="ok"' in text
    assert "mlx_gateway_time_to_first_token_seconds_count" in text
    assert 'mlx_gateway_tokens_total{client="ada",kind="completion"' in text
    assert not any(key in text for key in keys.values())


def test_who_used_its_requests_or_tokens_is_told_when_to_come_again(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    assert [_ask(keyed, "few").status_code for _ in range(3)] == [200, 200, 429]
    assert [_ask(keyed, "short").status_code for _ in range(2)] == [200, 429]
    refused = _ask(keyed, "few")
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert "requests" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
    assert refused.headers["x-should-retry"] == "true"
    assert _ask(keyed, "ada").status_code == 200


_ENDLESS = {"max_tokens": 900, "stream": True, "logit_bias": ENDLESS}


def test_who_hangs_up_before_the_end_has_used_what_came_until_then(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    process, keys = keyed
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], **_ENDLESS}
    headers = {"x-api-key": keys["hasty"]}
    url = f"{process.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        received = 0
        while received < 60:  # a chunk may have several tokens
            delta = json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]
            received += len(delta.get("content") or "")
    wait_for(lambda: _ask(keyed, "hasty").status_code == 429, "its tokens are used")
    metrics = httpx.get(f"{process.url}/metrics", headers={"x-api-key": keys["admin"]}).text
    completion = next(line for line in metrics.splitlines() if line.startswith(
        'mlx_gateway_tokens_total{client="hasty",kind="completion"'))  # fmt: skip
    assert float(completion.split()[-1]) >= 40


def test_tokens_of_a_running_stream_count_before_its_end(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    process, keys = keyed
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], **_ENDLESS, "n": 32}
    url = f"{process.url}/v1/chat/completions"
    with httpx.stream(
        "POST", url, json=body, headers={"x-api-key": keys["busy"]}, timeout=60
    ) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        wait_for(lambda: next(lines) and _ask(keyed, "busy").status_code == 429, "they count")
        assert next(lines) != "data: [DONE]"


def test_who_has_used_its_requests_does_not_read_stored_responses_either(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    process, keys = keyed
    headers = {"x-api-key": keys["reader"]}
    unknown = f"resp_{'0' * 24}"
    url = f"{process.url}/v1/responses"
    body = {"input": "Hi", "previous_response_id": unknown}

    def statuses() -> list[int]:
        return [
            httpx.post(url, json=body, headers=headers).status_code,
            httpx.get(f"{url}/{unknown}", headers=headers).status_code,
            httpx.get(f"{url}/{unknown}/input_items", headers=headers).status_code,
        ]

    assert statuses() == [400, 404, 404]
    assert statuses() == [429] * 3
    assert httpx.delete(f"{url}/{unknown}", headers=headers).status_code == 429


def test_more_at_once_than_allowed_are_refused_until_one_ends(
    keyed: tuple[GatewayProcess, dict[str, str]],
) -> None:
    process, keys = keyed
    body = {
        "model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 900,
        "stream": True, "n": 32, "logit_bias": {str(token): -100 for token in range(3)},
    }  # fmt: skip
    headers = {"x-api-key": keys["single"]}
    with httpx.stream(
        "POST", f"{process.url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ) as stream:
        lines = stream.iter_lines()  # unreferenced it would close the stream
        assert next(lines).startswith("data: ")
        refused = _ask(keyed, "single")
        assert refused.status_code == 429 and "concurrent" in refused.json()["error"]["message"]
    wait_for(lambda: _ask(keyed, "single").status_code == 200, "the place is free again")
