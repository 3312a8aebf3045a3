"""Warming the models that past use says are asked for next."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from shared.errors import ClusterError
from shared.ids import ModelId
from shared.settings.worker import PredictiveWarmingSettings as Settings
from worker.models.lifecycle import ModelLifecycle
from worker.models.usage_forecast import UsageForecast

logger = logging.getLogger(__name__)


class PredictiveWarming:
    """Args:
        kept: the file that holds the history over restarts.
        clock: local time.

    Attributes:
        proposed: models that should be warm and are not, the most wanted first.
    """

    def __init__(
        self,
        settings: Settings,
        models: ModelLifecycle,
        kept: Path,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._settings = settings
        self._models = models
        self._kept = kept
        self._clock = clock
        self.proposed: list[ModelId] = []
        self._forecast = self._read() if settings.enabled else UsageForecast()

    def used(self, model: ModelId) -> None:
        """A request came for a model."""
        if self._settings.enabled:
            self._forecast.used(model, self._clock())

    async def run(self) -> None:
        """Propose and warm now and then, until cancelled."""
        if not self._settings.enabled:
            return
        try:
            while True:
                await asyncio.sleep(self._settings.interval_s)
                self.look_ahead()
                await asyncio.to_thread(self._write, self._forecast.to_json())
        finally:
            self._write(self._forecast.to_json())

    def look_ahead(self) -> None:
        """Propose, and load the first that has room without another having to go: one at a
        time, as what is loaded changes the room."""
        catalogue = self._models.catalogue
        # One with a time to live goes when its operator said so.
        cold = [m.id for m in catalogue if m.state == "available" and m.source.ttl_s is None]
        self.proposed = self._forecast.propose(
            cold, self._clock(), least_per_h=self._settings.min_requests_per_h
        )
        if any(model.state == "loading" for model in catalogue):
            return
        for model_id in self.proposed:
            if self._models.has_room_for(catalogue[model_id]):
                logger.info("model %s is warmed: it is usually asked for now", model_id)
                with contextlib.suppress(ClusterError):
                    self._models.load(model_id)
                return

    def _read(self) -> UsageForecast:
        try:
            return UsageForecast.from_json(self._kept.read_bytes())
        except FileNotFoundError:
            return UsageForecast()
        except (OSError, ValueError) as error:
            logger.warning("%s is not used: %r", self._kept, error)
            return UsageForecast()

    def _write(self, history: bytes) -> None:
        new = self._kept.with_suffix(".new")
        try:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(history)
            new.replace(self._kept)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._kept, error)
