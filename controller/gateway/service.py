"""The gateway service: serves HTTP and publishes requests to the cluster. Keeps counters only."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from controller.gateway.api_keys import ApiKeyRing, default_keys_file
from controller.gateway.app import GatewayApp
from controller.gateway.health_poller import HealthPoller
from controller.gateway.inference_client import InferenceClient
from controller.gateway.live.feed import LiveFeed
from controller.gateway.live.handlers import LiveHandlers
from controller.gateway.live.orders import OrderService
from controller.gateway.metrics import GatewayMetrics
from controller.gateway.model_resolver import ModelResolver
from controller.gateway.rate_limiter import ClientRateLimiter
from controller.gateway.responses.client_shares import ClientShares
from controller.gateway.responses.stored import ResponseStore
from controller.gateway.server import HttpServer
from shared.bus import Bus, ObjectStore
from shared.client import Cluster
from shared.errors import SettingsError
from shared.ids import LOCAL_CLIENT
from shared.logs import BusLogHandler
from shared.loopback import is_surely_loopback
from shared.service import StopSignal
from shared.settings import ClusterSettings
from shared.settings.gateway import GatewaySettings
from shared.subjects import RESPONSES_BUCKET
from shared.telemetry import Tracer

logger = logging.getLogger(__name__)

_KEYS_REFRESH_S = 1.0


def key_ring(settings: GatewaySettings) -> ApiKeyRing:
    """Return the API keys that callers need.

    These are the keys of `keys_file`. Without `keys_file`, a gateway that other machines can reach
    uses the default file. No key is required on loopback, or with `allow_anonymous`.

    Raises:
        SettingsError: the file is unusable, or other machines could call without a key.
    """
    if settings.keys_file is not None:
        return ApiKeyRing(Path(settings.keys_file).expanduser())
    if not settings.allow_anonymous and not is_surely_loopback(settings.host):
        if default_keys_file().exists():
            return ApiKeyRing(default_keys_file())
        raise SettingsError(
            f"gateway.host: on {settings.host} everybody in the network could use the cluster. "
            "Make keys (`gateway keys add NAME`), or "
            "allow callers without a key (gateway.allow_anonymous, --allow-anonymous)"
        )
    return ApiKeyRing(None)


class Gateway:
    """Composes the parts of the gateway; `run` serves until the gateway is stopped.

    Args:
        announce: called with the URL when the server listens.
        tracer: None if requests are not traced.

    Raises:
        SettingsError: the server cannot listen on the address.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        ring: ApiKeyRing,
        bus: Bus,
        logs: BusLogHandler,
        announce: Callable[[str], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._bus = bus
        self._logs = logs
        self._announce = announce
        gateway = settings.gateway
        self._drain_s = gateway.drain_timeout_ms / 1000
        self._ring = ring
        cluster = Cluster(bus, LOCAL_CLIENT)
        self._poller = HealthPoller(cluster)
        self._directory = ModelResolver(self._poller, gateway.model_aliases)
        metrics = GatewayMetrics(bus.statistics)
        strict = settings.security.strict_inbox
        quotas = ClientRateLimiter()
        inference = InferenceClient(
            bus,
            self._directory,
            quotas,
            metrics,
            strict=strict,
            idle_timeout_s=gateway.idle_timeout_ms / 1000,
        )
        self._feed = LiveFeed(cluster, self._poller)
        live = LiveHandlers(gateway, self._feed, OrderService(bus), ring)
        self._app = GatewayApp(
            gateway,
            inference,
            self._directory,
            quotas,
            self._ring,
            metrics,
            _response_store(gateway, bus, metrics, has_keys=ring.requires_key),
            live,
            tracer,
        )
        self._server = HttpServer(gateway, self._app.build())

    async def run(self, stop: StopSignal) -> None:
        """Serve until `stop` is set, then wait for open requests to finish."""
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._poller.run()),
                tasks.create_task(self._feed.run()),
                tasks.create_task(self._refresh_keys()),
                tasks.create_task(self._logs.run(self._bus)),
            ]
            await self._logs.answer(self._bus)
            serving = tasks.create_task(self._server.run())
            logger.info("gateway is ready at %s", self._server.url)
            self._announce(self._server.url)
            await stop.wait()
            self._app.draining = True
            self._feed.end()
            self._server.stop(force=stop.immediate)
            await asyncio.wait((serving,), timeout=0 if stop.immediate else self._drain_s)
            # Before the bus closes: cancelled requests publish their cancellation.
            await self._server.cancel_requests()
            for task in (*background, serving):
                task.cancel()

    async def _refresh_keys(self) -> None:
        while True:
            await asyncio.sleep(_KEYS_REFRESH_S)
            self._ring.refresh()


def _response_store(
    settings: GatewaySettings, bus: Bus, metrics: GatewayMetrics, *, has_keys: bool
) -> ResponseStore:
    limits = settings.responses
    share_bytes = round(limits.max_bytes * limits.client_share)
    # Without keys all callers are one client.
    shares = ClientShares(share_bytes, limits.max_age) if has_keys else None
    store = ObjectStore(bus, RESPONSES_BUCKET, max_bytes=limits.max_bytes, max_age_s=limits.max_age)
    return ResponseStore(store if limits.store else None, settings.max_body_bytes, metrics, shares)
