"""Gateways in front of the clusters of all tests, and clients."""

from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from tests.controller.gateway.gateway_process import GatewayProcess, gateway_process
from tests.processes import ClusterProcess


@pytest.fixture(scope="session")
def gateway(tiny_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    """In front of the tiny model: for tests that break nothing."""
    with gateway_process(tiny_cluster.url) as process:
        yield process


@pytest.fixture(scope="session")
def demo_gateway(demo_cluster: ClusterProcess) -> Iterator[GatewayProcess]:
    """In front of the real small model."""
    with gateway_process(demo_cluster.url) as process:
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
