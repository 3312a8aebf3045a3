"""A worker that needs a model fetches it from one that has it, in a cluster with keys and TLS."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hub import HubStandIn
from tests.machines import Machine, SecuredCluster
from tests.processes import wait_for

REPO = "owner/tiny"


@pytest.fixture
def hub(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """The one hub of all machines, which have homes, and so caches, of their own."""
    for name in ("HF_HOME", "HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.add(REPO, tiny_model)
        yield hub


def warm(machine: Machine) -> set[str]:
    """The workers that have a model loaded."""
    workers = json.loads(machine.run("cluster", "status", "--json"))["workers"]
    return {
        worker["id"]
        for worker in workers
        if any(model["state"] == "warm" for model in worker["models"])
    }


def test_the_second_worker_needs_no_content_of_the_hub(tmp_path: Path, hub: HubStandIn) -> None:
    with ExitStack() as stack:
        cluster = SecuredCluster(tmp_path, stack, Path(REPO))
        cluster.serve()
        assert hub.sent, "the first one has it from the hub"
        hub.sent.clear()
        third = Machine(tmp_path / "third", stack, Path(REPO))
        third.run("worker", "join", given=cluster.token("worker", "mac-3"))
        third.start("worker")
        wait_for(lambda: warm(cluster.first) == {"mac-2", "mac-3"}, "both serve")
        assert hub.sent == []
        said = (tmp_path / "third" / "worker.log").read_text()
        assert f"{REPO}: " in said and "bytes from mac-2" in said
        cached = ".cache/huggingface/hub/models--owner--tiny/blobs"
        first, second = (
            sorted((tmp_path / name / cached).iterdir()) for name in ("second", "third")
        )
        assert [path.name for path in first] == [path.name for path in second]
        assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True))
