"""Gateways in front of the clusters of all tests, and clients."""

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.controller.gateway.scripts import make_assistant
from tests.processes import ClusterProcess, Started, cluster_process


@pytest.fixture(scope="session")
def gateways() -> Iterator[Started[str, GatewayProcess]]:
    """By the address of the cluster behind them."""
    with Started(gateway_process) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(tiny_cluster: ClusterProcess, gateways: Started[str, GatewayProcess]) -> GatewayProcess:
    """In front of the tiny model: for tests that break nothing."""
    return gateways.get(tiny_cluster.url)


@pytest.fixture(scope="module")
def demo_gateway(
    demo_cluster: ClusterProcess, gateways: Started[str, GatewayProcess]
) -> GatewayProcess:
    """In front of the real small model."""
    return gateways.get(demo_cluster.url)


@pytest.fixture(scope="module")
def scripted_gateway(
    demo_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """In front of a model that thinks, calls tools and answers as its scripts say."""
    folder = make_assistant(tmp_path_factory.mktemp("models") / "scripted", demo_folder)
    source = {"path": str(folder), "trust_remote_code": True}
    settings = {
        "CLUSTER__SKILLS": json.dumps({"chat": ["scripted"]}),
        "CLUSTER__MODELS": json.dumps({"scripted": source}),
        "CLUSTER__WORKER__MODELS": json.dumps(["scripted"]),
    }
    with cluster_process(settings=settings) as cluster, gateway_process(cluster.url) as process:
        yield process


@pytest.fixture
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client


@pytest.fixture
def openai_client(demo_gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_gateway.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture
def anthropic_client(demo_gateway: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo_gateway.url, api_key="none") as client:
        yield client
