"""Rolling out where everybody has the least permissions: an administrator may, a client may not."""

import json
from contextlib import ExitStack
from pathlib import Path

from tests.machines import SecuredCluster
from tests.processes import wait_for

AT_ONCE = ("--baseline", "0", "--bake", "0")


def test_an_administrator_rolls_out_and_a_client_does_not(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("worker: {request_queue: {max_depth: 7}}")
    apply = ("cluster", "rollout", "apply", str(file), *AT_ONCE)
    with ExitStack() as stack:
        cluster = SecuredCluster(tmp_path, stack, tiny_model)
        cluster.serve()
        said = cluster.person("eve").run(*apply, fails=True)
        assert "does not permit this: mlx.rollout.apply" in said
        admin = cluster.first
        wait_for(lambda: "leads" in admin.run("cluster", "status"), "it leads", limit_s=30)
        assert "Version 1  done" in admin.run(*apply)
        assert admin.run("cluster", "rollout", "show", "1") == file.read_text() + "\n"
        (worker,) = json.loads(admin.run("cluster", "status", "--json"))["workers"]
        assert worker["config_version"] == 1
        assert "All run each machine's own file" in admin.run("cluster", "rollout", "rollback")
