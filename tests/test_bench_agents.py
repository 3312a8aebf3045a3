"""`cluster bench agents` with real clusters: what it finds, leaves behind, and refuses."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from shared.cli.main import main
from tests.processes import SCRIPTS, wait_for, wait_until_gone

_SMALL = ("--agents", "2", "--turns", "2", "--turn-tokens", "60", "--max-tokens", "6")
_LIMIT_S = 120


def run_bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(SCRIPTS / "cluster"), "bench", *arguments]
    one_engine = {**os.environ, "CLUSTER__WORKER__ENGINES__COUNT": "1"}  # which keeps all
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, env=one_engine)


def test_what_was_kept_is_not_prefilled_again_and_answers_are_the_same(
    tiny_model: Path, tmp_path: Path
) -> None:
    done = run_bench(
        *("agents", *_SMALL, "--system-tokens", "500", "--model", str(tiny_model)),
        *("--json", "--output", str(tmp_path / "out" / "here")),
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "here" / "agents.json").read_text())
    assert (found["model"], found["restart_after"]) == ("tiny", 1)
    assert (found["answers"], found["equal_answers"]) == (4, 4)
    kept, without = found["with_kv_memory"], found["without_kv_memory"]
    for side in (kept, without):
        assert side["restart_s"] > 0
        for answer in side["answers"]:
            assert 500 < answer["prompt_tokens"] < 1000
            assert 0 < answer["first_token_s"] <= answer["seconds"]
    for number in (0, 1):
        turns = kept["turns"][number], without["turns"][number]
        assert turns[0]["prompt_tokens"] == turns[1]["prompt_tokens"]
        assert turns[0]["computed_tokens"] < turns[1]["computed_tokens"]
        assert turns[1]["computed_tokens"] == turns[1]["prompt_tokens"]
    last = [answer for answer in kept["answers"] if answer["turn"] == 2]
    assert all(answer["cached_tokens"] > 500 for answer in last)  # kept over the restart
    assert (tmp_path / "out" / "here" / "agents.png").stat().st_size > 20_000


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_when_it_is_ended(
    how: signal.Signals, tiny_model: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [
            *(str(SCRIPTS / "cluster"), "bench", "agents", "--model", str(tiny_model)),
            *("--turns", "100", "--output", str(tmp_path / "out")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    children = wait_for(lambda: _with_an_engine(process.pid), "an engine runs")
    process.send_signal(how)
    out, err = process.communicate(timeout=_LIMIT_S)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert wait_until_gone(children) == []
    assert list(scratch.glob("mlx-bench-*")) == list((tmp_path / "out").iterdir()) == []


def _with_an_engine(pid: int) -> list[psutil.Process]:
    """All children once one is an engine."""
    children = psutil.Process(pid).children(recursive=True)
    return children if any("worker.engine" in child.cmdline() for child in children) else []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--agents", "0"), "1<=x<=64"),
        (("--turns", "1"), "2<=x<=100"),
        (("--max-tokens", "many"), "not a valid integer"),
        (("--system-tokens", "-5"), "1<=x<=200000"),
        (("--model", ""), "must not be empty"),
        (("--output", ""), "must not be empty"),
        (("--output", "/dev/null/here"), "cannot write to /dev/null/here"),
        (("--config", "missing.yaml"), "missing.yaml: no such file"),
        (("--nats", "nats://127.0.0.1:1"), "starts a cluster of its own"),
        (("--model", "/no/such/model"), "/no/such/model"),
        (("--frobnicate",), "No such option"),
    ],
)
def test_bad_flags_are_refused_by_name(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(main, ["bench", "agents", "--output", str(tmp_path), *arguments])
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_conversation_that_grows_too_long_is_told_with_the_agent_and_what_to_do(
    tiny_model: Path, tmp_path: Path
) -> None:
    done = run_bench(
        *("agents", "--agents", "1", "--turns", "2", "--system-tokens", "900", "--no-restart"),
        *("--turn-tokens", "200", "--model", str(tiny_model), "--output", str(tmp_path), "--json"),
    )
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("agent 1, turn 1: ")
    assert "--system-tokens" in error["message"]


def test_bench_alone_lists_what_can_be_measured() -> None:
    for arguments in ([], ["--help"]):
        done = CliRunner().invoke(main, ["bench", *arguments])
        assert "agents" in done.output
        assert "with and without KV memory" in done.output
