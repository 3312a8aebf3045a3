"""`cluster up`: what it prints, what it leaves behind (nothing), how it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.cli.up import for_clients
from shared.messages.health import ClusterHealth
from shared.settings.gateway import GatewaySettings
from tests.processes import SCRIPTS, cluster_process, free_port, wait_for, wait_until_gone
from tests.tiers import long_form

pytestmark = pytest.mark.anyio


def run_up(
    *arguments: str, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(SCRIPTS / "cluster"), "up", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
    )


def test_it_starts_what_its_ready_line_names_and_starts_again_what_dies(tiny_model: Path) -> None:
    """Also that workers of one machine have one engine each, and share the cores."""
    asked = {"model": "chat", "prompt": "Hi", "max_tokens": 2}
    settings = {
        "CLUSTER__WORKER__ENGINES__COUNT": "auto",
        "CLUSTER__WORKER__ENGINES__THREADS": "auto",
    }
    gateway = ("--http-port", "0")
    with cluster_process(
        workers=2, model=str(tiny_model), arguments=gateway, settings=settings
    ) as cluster:
        ready = cluster.ready
        assert ready["nats_url"].startswith("nats://127.0.0.1:")
        assert ready["workers"] == ["worker-1", "worker-2"]
        assert ready["controllers"] == ["controller-1"]
        engines = cluster.find("worker.engine")
        assert len(engines) == 2
        threads = {engine.environ()["OPENBLAS_NUM_THREADS"] for engine in engines}
        assert threads == {str(max(1, (os.cpu_count() or 1) // 2))}
        url = f"{ready['http_url']}/v1/completions"
        assert httpx.post(url, json=asked, timeout=60).status_code == 200
        killed = [*cluster.find("--id worker-1"), *cluster.find("gateway --nats")]
        assert len(killed) == 2
        for process in killed:
            process.kill()

        def answers_again() -> bool:
            try:
                return httpx.post(url, json=asked, timeout=60).status_code == 200
            except httpx.TransportError:
                return False

        def replaced() -> bool:
            again = [*cluster.find("--id worker-1"), *cluster.find("gateway --nats")]
            started = set(cluster.find("worker.engine")) - set(engines)
            return len(again) == 2 and len(started) == 1

        wait_for(answers_again, "a new gateway answers")
        wait_for(replaced, "a new worker and a new engine run")
        now = [process.pid for process in cluster.processes()]
        assert not {process.pid for process in killed} & set(now)


@pytest.mark.parametrize(
    "how",
    [long_form(signal.SIGINT), signal.SIGKILL],  # every other test here ends it with SIGTERM
)
def test_no_process_stays_when_it_is_ended(how: signal.Signals, tiny_model: Path) -> None:
    with cluster_process(workers=2, model=str(tiny_model)) as cluster:
        assert cluster.ready["http_url"] is None
        children = cluster.processes()
        names = {word for child in children for word in child.cmdline()}
        assert any("nats-server" in name for name in names)
        assert len(cluster.find("worker.engine")) == 2
        cluster.process.send_signal(how)
        cluster.process.wait(timeout=60)
        assert wait_until_gone(children) == []
        assert cluster.process.returncode == (-9 if how == signal.SIGKILL else 0)


def test_its_settings_may_ask_for_a_gateway(tiny_model: Path) -> None:
    settings = {"CLUSTER__GATEWAY__ENABLED": "true", "CLUSTER__GATEWAY__PORT": "0"}
    with cluster_process(model=str(tiny_model), settings=settings) as cluster:
        assert httpx.get(f"{cluster.ready['http_url']}/health").status_code == 200


def test_a_gateway_that_cannot_run_says_why(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ("--nats-port", "0", "--model", str(tiny_model), "--http-port", port)
        done = run_up(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    arguments = (*arguments[:-1], "0")
    done = run_up(*arguments, environment={"CLUSTER__GATEWAY__HOST": "0.0.0.0"})
    assert done.returncode == 2 and "gateway.host" in done.stderr


def test_a_taken_port_of_the_gateway_is_found_before_any_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_up("--nats-port", "0", "--model", "/no/such/model", "--http-port", port)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line
    assert "--http-port, 0 for any free one" in line


def test_it_says_how_to_ask_and_how_other_machines_join(tiny_model: Path, tmp_path: Path) -> None:
    """Every line can be pasted: a model that is served, an address that others reach."""
    home = tmp_path / "dö"  # a folder whose name is not ASCII
    environment = {"XDG_DATA_HOME": str(home), "HOME": str(home)}
    arguments = ["--nats-port", free_port(), "--listen", "0.0.0.0", "--http-port", "0"]
    with subprocess.Popen(
        [str(SCRIPTS / "cluster"), "up", *arguments, "--model", str(tiny_model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
    ) as up:
        assert up.stdout is not None
        lines: list[str] = []
        for line in up.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        up.send_signal(signal.SIGINT)
    said = "".join(lines)
    name = tiny_model.name
    assert f"1 worker, model {name} (skill chat)" in said
    assert f"  model names: chat, {name}\n" in said
    assert "OPENAI_API_KEY=none" in said
    (joining,) = [line.strip() for line in lines if line.startswith("  worker --nats")]
    assert joining.startswith("worker --nats nats://") and "0.0.0.0" not in joining
    assert "THIS-MAC" not in joining and " --token " in joining


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "mlx-nats-cluster" / f"cluster-{port}"
    folder.mkdir(parents=True)
    (folder / "nats-server.json").symlink_to("/dev/full")
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = run_up("--nats-port", port, "--model", str(tiny_model), environment=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device; free some disk space" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_runs_in_the_cluster_and_its_exit_status_is_ours(tiny_model: Path) -> None:
    """It finds the gateway where clients look for it."""
    program = (
        "import os, subprocess, sys, httpx; "
        "print(httpx.get(os.environ['OPENAI_BASE_URL'] + '/models').text, "
        "httpx.get(os.environ['ANTHROPIC_BASE_URL'] + '/health').text, flush=True); "
        "subprocess.run(sys.argv[1:], check=True); sys.exit(7)"
    )
    done = run_up(
        *("--nats-port", "0", "--http-port", "0", "--model", str(tiny_model), "--"),
        *(sys.executable, "-c", program),
        *(str(SCRIPTS / "cluster"), "run", "--max-tokens", "4", "--json", "Hello"),
    )
    assert done.returncode == 7, done.stderr
    found, answer = done.stdout.splitlines()
    assert '"id":"chat"' in found and '"status":"ok"' in found
    assert json.loads(answer)["usage"]["completion_tokens"] <= 4


def test_a_port_in_use_is_refused_with_what_to_do(tiny_model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
        done = run_up("--nats-port", port, "--model", str(tiny_model), environment=environment)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr and "--nats-port" in done.stderr
    assert done.stdout == ""


def test_a_folder_in_which_the_server_can_keep_nothing_is_named(
    tiny_model: Path, tmp_path: Path
) -> None:
    port = free_port()
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    first = run_up("--nats-port", port, "--model", str(tiny_model), "--", "true",
                   environment=environment)  # fmt: skip
    assert first.returncode == 0, first.stderr
    (configuration,) = tmp_path.rglob("nats-server.json")
    store = configuration.parent / "jetstream"
    store.rename(store.parent / "elsewhere")
    store.write_text("in the way")
    done = run_up("--nats-port", port, "--model", str(tiny_model), environment=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot store data in {store}: storage directory is not" in done.stderr


def test_a_data_folder_that_cannot_be_made_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path / "data")}
    done = run_up("--nats-port", "4999", "--model", str(tiny_model), environment=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write to {tmp_path / 'data'}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "0"), "1<=x<=64"),
        (("--nats-port", "70000"), "0<=x<=65535"),
        (("--http-port", "-1"), "0<=x<=65535"),
        (("--listen", "everywhere"), "not an IP address"),
        (("--nats", "nats://127.0.0.1:1"), "starts a NATS server of its own"),
        (("--nats-port", "0", "--model", "/no/such/model"), "/no/such/model"),
        (("--nats-port", "0", "--model", ""), "--model"),
        (("--nats-port", "0", "--listen", "192.0.2.1"), "--listen"),
    ],
)
def test_bad_flags_are_refused_by_name(arguments: tuple[str, ...], said: str) -> None:
    done = run_up(*arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_another_machine_needs_the_token_that_was_made_and_kept(
    tiny_model: Path, tmp_path: Path
) -> None:
    port = free_port()
    home = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    program = (
        f"{SCRIPTS / 'cluster'} status --json --nats nats://127.0.0.1:{port} --token wrong; "
        "echo $?; unset CLUSTER__NATS__TOKEN; "
        f"{SCRIPTS / 'cluster'} status --json --nats nats://127.0.0.1:{port}"
    )
    done = run_up(
        *("--listen", "0.0.0.0", "--nats-port", port, "--model", str(tiny_model), "--"),
        *("sh", "-c", program),
        environment=home,
    )
    assert "Authorization Violation" in done.stderr
    first, second = done.stdout.splitlines()
    assert first == "1"
    assert json.loads(second)["status"] == "ready"
    tokens = list(tmp_path.rglob("token"))
    assert len(tokens) == 1 and tokens[0].stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("gateway", "key"),
    [
        ({}, "none"),
        ({"keys_file": "keys.yaml"}, "KEY"),
        ({"host": "0.0.0.0"}, "KEY"),
        ({"host": "mac.example"}, "KEY"),
        ({"host": "0.0.0.0", "allow_anonymous": True}, "none"),
    ],
)
def test_all_that_a_client_needs_is_told(gateway: dict[str, Any], key: str) -> None:
    health = ClusterHealth.model_validate(
        {
            "status": "ready", "controllers": [], "workers": [],
            "skills": {"chat": ["demo"], "code": ["other", "demo"]},
        }
    )  # fmt: skip
    settings = GatewaySettings.model_validate(gateway)
    told = for_clients("http://127.0.0.1:8000", settings, health)
    assert f"OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY={key}" in told
    assert f"ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_AUTH_TOKEN={key}" in told
    assert told.endswith("a chat: http://127.0.0.1:8000/")
    assert ("gateway keys add" in told) == (key == "KEY")
    assert "model names: chat, demo, code, other\n" in told
