"""A fault of the gateway's own: its caller is told in the shape of the API, its log says more."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.gateway.api_keys import ApiKeyRing
from controller.gateway.app import GatewayApp
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_resolver import ListedModel, ModelResolver
from controller.gateway.rate_limiter import ClientRateLimiter
from controller.gateway.responses.stored import ResponseStore
from shared.bus import ReceiveStatistics
from shared.settings.gateway import GatewaySettings


class _Broken(ModelResolver):
    """Has a fault."""

    def __init__(self) -> None:
        pass

    async def list_models(self, allowed: Collection[str] | None = None) -> dict[str, ListedModel]:
        raise ZeroDivisionError("secret")


@pytest.mark.anyio
async def test_a_fault_is_told_in_the_shape_of_an_error_and_says_nothing_of_the_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inference: Any = None
    live: Any = SimpleNamespace(events=None, order=None)
    metrics = GatewayMetrics(ReceiveStatistics())
    stored = ResponseStore(None, 1, metrics)
    quotas = ClientRateLimiter()
    app = GatewayApp(
        GatewaySettings(), inference, _Broken(), quotas, ApiKeyRing(None), metrics, stored, live
    ).build()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/v1/models")
    assert answer.status_code == 500 and answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "internal_error" and "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text
