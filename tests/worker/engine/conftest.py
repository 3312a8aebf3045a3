"""The tiny model in this process, for tests that step it by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from shared.ids import ModelId
from tests.worker.engine.watched_network import WatchedNetwork
from worker.engine.model import LoadedModel, load_model
from worker.link.messages import LoadModel


@pytest.fixture(scope="session")
def loaded_model(tiny_model: Path) -> LoadedModel:
    return load_model(LoadModel(ModelId("tiny"), str(tiny_model)))


@pytest.fixture
def network(loaded_model: LoadedModel) -> WatchedNetwork:
    return WatchedNetwork(loaded_model.network)


@pytest.fixture
def model(loaded_model: LoadedModel, network: WatchedNetwork) -> LoadedModel:
    """With the network of the fixture `network`, and without tokens that end every answer."""
    return replace(loaded_model, network=network, end_ids=frozenset())
