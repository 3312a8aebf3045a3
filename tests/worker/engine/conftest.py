"""The tiny model in this process, for tests that step it by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.ids import ModelId
from tests.worker.engine.driven_batch import steady
from tests.worker.engine.other_models import KINDS, random_network, serving
from tests.worker.engine.watched_network import WatchedNetwork
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel


@pytest.fixture(scope="session")
def loaded_model(tiny_model: Path) -> LoadedModel:
    return load_model(LoadModel(ModelId("tiny"), str(tiny_model)))


@pytest.fixture
def network(loaded_model: LoadedModel) -> WatchedNetwork:
    return WatchedNetwork(loaded_model.network)


@pytest.fixture
def model(loaded_model: LoadedModel, network: WatchedNetwork) -> LoadedModel:
    """With the network of the fixture `network`, a prefill speed that is the same on all machines
    (20 tokens of padding cost nothing), and without tokens that end every answer."""
    return steady(replace(loaded_model, network=network, end_ids=frozenset()))


@pytest.fixture(scope="session")
def networks() -> dict[str, Any]:
    """One of each kind but plain attention."""
    return {kind: random_network(kind) for kind in KINDS}


@pytest.fixture(scope="session")
def models(loaded_model: LoadedModel, networks: dict[str, Any]) -> dict[str, LoadedModel]:
    """One of each kind, with a network that counts its passes."""
    endless = steady(replace(loaded_model, end_ids=frozenset()))
    served = {"attention": endless}
    served |= {kind: serving(endless, network) for kind, network in networks.items()}
    return {
        kind: replace(model, network=WatchedNetwork(model.network))
        for kind, model in served.items()
    }
