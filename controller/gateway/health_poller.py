"""Polls the cluster's health, and caches the last answer."""

import asyncio
import logging
import time
from collections.abc import Callable

from shared.client import Cluster
from shared.errors import ClusterError, Unavailable
from shared.messages.health import ClusterHealth

logger = logging.getLogger(__name__)

_INTERVAL_S = 2.0
_WATCHED_INTERVAL_S = 1.0
_PER_WORKER_S = 0.002
"""Decoding the health of 1,000 workers takes some tens of milliseconds: then every 2 s."""


class HealthPoller:
    """
    Attributes:
        health: the last answer, None before the first.
        refreshed_at: when it arrived, by the monotonic clock.
        problem: why the last query failed; None if it did not.
        watched: whether somebody watches the cluster; the poller asks more often then.
        on_poll: called after each query, also after failed ones.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.health: ClusterHealth | None = None
        self.refreshed_at = 0.0
        self.problem: str | None = None
        self.watched = False
        self.on_poll: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.refresh()
            interval_s = _WATCHED_INTERVAL_S if self.watched else _INTERVAL_S
            workers = len(self.health.workers) if self.health is not None else 0
            await asyncio.sleep(max(interval_s, workers * _PER_WORKER_S))

    async def current(self) -> ClusterHealth:
        """Return the last answer; ask now if there is none.

        Raises:
            Unavailable: no controller answers.
        """
        if self.health is None:
            await self.refresh()
        if self.health is None:
            raise Unavailable(
                "no controller answers; is `controller` running?", code="no_controller"
            )
        return self.health

    async def refresh(self) -> None:
        """Ask once."""
        try:
            self.health = await self._cluster.health()
            self.problem, self.refreshed_at = None, time.monotonic()
        except ClusterError as error:
            self.problem = error.message
            logger.debug("cannot get the health of the cluster: %s", error.message)
        for callback in self.on_poll:
            try:
                callback()
            except Exception:  # a view fails, not the gateway
                logger.exception("a view of the cluster's health failed")
