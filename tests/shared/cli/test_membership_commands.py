"""From a token to a cluster, as people type it: three roles with keys and TLS, and an answer."""

import json
from contextlib import ExitStack
from pathlib import Path

from shared.access.member_credentials import read_token
from tests.machines import Machine, SecuredCluster
from tests.processes import free_port, wait_for


def test_from_nothing_to_an_answer_with_keys_and_tls(
    tmp_path: Path, stack: ExitStack, tiny_model: Path
) -> None:
    cluster = SecuredCluster(tmp_path, stack, tiny_model)
    wrong = cluster.second.run("worker", "join", cluster.token("client", "eve"), fails=True)
    assert "use `cluster join`" in wrong
    cluster.serve()
    own = cluster.second.shell("cluster status || echo status $?")
    assert "The worker of this machine:" in own and "mac-2" in own and "status 1" in own
    told = cluster.second.run("cluster", "status", fails=True)
    assert "as the worker mac-2, whose key permits neither requests" in told
    assert "cluster auth add client NAME" in told and len(told.splitlines()) == 1
    ada = cluster.person("ada")
    assert ada.run("cluster", "run", "--max-tokens", "4", "Hello").strip()
    assert "does not permit" in ada.run("cluster", "drain", "mac-2", fails=True)
    assert "does not permit" in ada.run("cluster", "logs", "--no-follow", fails=True)
    assert "does not permit" in ada.run("cluster", "rollout", "status", fails=True)
    assert "finished after" in cluster.first.run("cluster", "logs", "--no-follow")
    _roll_out(cluster.first, ada, tmp_path / "new.yaml")
    ada.run("cluster", "leave")
    assert "joined no cluster" in ada.run("cluster", "leave", fails=True)


def _roll_out(admin: Machine, client: Machine, file: Path) -> None:
    """An administrator may, a client may not."""
    file.write_text("worker: {request_queue: {max_depth: 7}}")
    apply = ("cluster", "rollout", "apply", str(file), "--baseline", "0", "--bake", "0")
    assert "does not permit this: mlx.rollout.apply" in client.run(*apply, fails=True)
    wait_for(lambda: "leads" in admin.run("cluster", "status"), "it leads", limit_s=30)
    assert "Version 1  done" in admin.run(*apply)
    assert admin.run("cluster", "rollout", "show", "1") == file.read_text() + "\n"
    (worker,) = json.loads(admin.run("cluster", "status", "--json"))["workers"]
    assert worker["config_version"] == 1
    assert "All workers run each machine's own file" in admin.run("cluster", "rollout", "rollback")


def test_what_is_no_token_is_refused_and_changes_nothing(tmp_path: Path, stack: ExitStack) -> None:
    machine = Machine(tmp_path / "m", stack)
    assert "this is no token" in machine.run("worker", "join", "abc", fails=True)
    assert "this is no token" in machine.run("worker", "join", given="", fails=True)
    assert "not whole" in machine.run("worker", "join", "mlx1.abcd", fails=True)
    assert "joined no cluster" in machine.run("worker", "leave", fails=True)


def test_who_cannot_reach_the_cluster_yet_has_joined(tmp_path: Path, stack: ExitStack) -> None:
    first, second = Machine(tmp_path / "a", stack), Machine(tmp_path / "b", stack)
    first.run("cluster", "auth", "init", "--host", "127.0.0.1", "--port", free_port())
    token = first.run("cluster", "auth", "add", "worker", "w")
    told = json.loads(second.run("worker", "join", "-", "--json", given=token))
    assert told == {
        "role": "worker", "name": "w", "servers": read_token(token).servers, "reached": False
    }  # fmt: skip
