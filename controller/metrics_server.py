"""The figures of a controller over HTTP, for Prometheus: `GET /metrics`."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Metric, start_http_server

from shared.errors import SettingsError
from shared.settings.controller import MetricsSettings

_ANSWER_S = 5.0


@contextmanager
def serving_metrics(settings: MetricsSettings, registry: CollectorRegistry) -> Iterator[str | None]:
    """Serve what a registry collects, from threads; yields the URL, or None where it is disabled.

    Raises:
        SettingsError: the address cannot be had.
    """
    if not settings.enabled:
        yield None
        return
    collected = _InLoop(asyncio.get_running_loop(), registry)
    try:
        server, thread = start_http_server(settings.port, settings.host, collected)
    except (OSError, OverflowError) as error:
        where = f"{settings.host}:{settings.port}"
        raise SettingsError(f"controller.metrics: cannot listen on {where}: {error}") from None
    try:
        yield f"http://{settings.host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _InLoop:
    """A registry that is asked in the event loop, where what it tells of is changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, registry: Any) -> None:
        self._loop = loop
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(self._collect(), self._loop).result(_ANSWER_S)

    def restricted_registry(self, names: Iterable[str]) -> "_InLoop":
        """Who asks for some names only gets those."""
        return _InLoop(self._loop, self._registry.restricted_registry(names))

    async def _collect(self) -> list[Metric]:
        return list(self._registry.collect())
