"""A cluster with a scripted model for each agent, and what the agents did."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.models import make_models
from tests.agents.work import Place
from tests.controller.gateway.gateway_process import gateway_process
from tests.processes import cluster_process


@pytest.fixture(scope="module")
def place(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where the agents work; two workers serve them."""
    folder = tmp_path_factory.mktemp("agents")
    models = make_models(folder / "models", demo_folder, folder / "work")
    settings = {
        "CLUSTER__SKILLS": json.dumps({name: [name] for name in models}),
        "CLUSTER__MODELS": json.dumps(
            {name: {"path": str(path), "trust_remote_code": True} for name, path in models.items()}
        ),
        "CLUSTER__WORKER__MODELS": json.dumps([*models]),
    }
    with (
        cluster_process(workers=2, settings=settings) as cluster,
        gateway_process(cluster.url) as gateway,
    ):
        yield Place(folder, cluster, gateway)
