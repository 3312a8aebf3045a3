"""Loading of models that past use predicts to be requested next."""

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
    """Predicts requests from the history of use, and loads models for them.

    Args:
        history_file: stores the history over restarts.
        clock: returns local time.

    Attributes:
        proposed: models that should be warm and are not, by descending expected use.
    """

    def __init__(
        self,
        settings: Settings,
        models: ModelLifecycle,
        history_file: Path,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._settings = settings
        self._models = models
        self._history_file = history_file
        self._clock = clock
        self.proposed: list[ModelId] = []
        self._forecast = self._read() if settings.enabled else UsageForecast()

    def record_request(self, model: ModelId) -> None:
        """Record a request for a model."""
        if self._settings.enabled:
            self._forecast.record(model, self._clock())

    async def run(self) -> None:
        """Propose and load models periodically, until cancelled."""
        if not self._settings.enabled:
            return
        try:
            while True:
                await asyncio.sleep(self._settings.interval_s)
                try:
                    self.propose_and_load()
                    await asyncio.to_thread(self._write, self._forecast.to_json())
                except Exception:  # requests load models without a prediction, too
                    logger.exception("the next requests cannot be predicted")
        finally:
            self._write(self._forecast.to_json())

    def propose_and_load(self) -> None:
        """Update `proposed`, and load the first proposed model that fits without eviction. One at
        a time, as each load changes the free memory."""
        catalogue = self._models.catalogue
        # A model with `ttl_s` is unloaded after that time, as its operator set it.
        cold = [m.id for m in catalogue if m.state == "available" and m.source.ttl_s is None]
        self.proposed = self._forecast.propose(
            cold, self._clock(), least_per_h=self._settings.min_requests_per_h
        )
        if any(model.state == "loading" for model in catalogue):
            return
        for model_id in self.proposed:
            if self._models.fits(catalogue[model_id]):
                logger.info("model %s is loaded: requests are expected", model_id)
                with contextlib.suppress(ClusterError):
                    self._models.load(model_id)
                return

    def _read(self) -> UsageForecast:
        try:
            return UsageForecast.from_json(self._history_file.read_bytes())
        except FileNotFoundError:
            return UsageForecast()
        except (OSError, ValueError) as error:
            logger.warning("%s is ignored: %r", self._history_file, error)
            return UsageForecast()

    def _write(self, history: bytes) -> None:
        new = self._history_file.with_suffix(".new")
        try:
            self._history_file.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(history)
            new.replace(self._history_file)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._history_file, error)
