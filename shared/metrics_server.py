"""Serves the Prometheus metrics of a process over HTTP: `GET /metrics`."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Metric, start_http_server

from shared.errors import SettingsError
from shared.settings.metrics import MetricsSettings

_COLLECT_S = 5.0


@contextmanager
def serving_metrics(
    settings: MetricsSettings, registry: CollectorRegistry, *, section: str
) -> Iterator[str | None]:
    """Serve the metrics of a registry, from threads; yields the URL, or None if disabled.

    Args:
        section: of the settings, for the error.

    Raises:
        SettingsError: the address is unavailable.
    """
    if not settings.enabled:
        yield None
        return
    in_loop = _EventLoopRegistry(asyncio.get_running_loop(), registry)
    try:
        server, thread = start_http_server(settings.port, settings.host, in_loop)
    except (OSError, OverflowError) as error:
        where = f"{settings.host}:{settings.port}"
        raise SettingsError(f"{section}: cannot listen on {where}: {error}") from None
    try:
        yield f"http://{settings.host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _EventLoopRegistry:
    """Collects a registry in the event loop, where the measured objects are changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, registry: Any) -> None:
        self._loop = loop
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result(_COLLECT_S)

    def restricted_registry(self, names: Iterable[str]) -> "_EventLoopRegistry":
        """Return a registry of these metrics only."""
        return _EventLoopRegistry(self._loop, self._registry.restricted_registry(names))

    async def _collect(self) -> list[Metric]:
        return list(self._registry.collect())
