"""Going over to another version of cluster.yaml while the worker serves."""

import logging
from collections.abc import Callable

from shared.errors import RequestError
from shared.messages.control import ConfigureWorker, DrainWorker
from shared.settings import ClusterSettings
from shared.settings.changes import Effect, SettingDifference, changes, effect_on_worker
from shared.settings.rolled_out import RolledOutVersion
from worker.agent.configuration import Configuration

logger = logging.getLogger(__name__)


class Reconfiguration:
    """
    Args:
        settings: those that the worker runs with.
        apply: has all parts go by other settings, which need no restart.
        drain: has the worker end gracefully, and start again.

    Attributes:
        version: that the worker runs; 0 for the machine's own file.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        configuration: Configuration,
        apply: Callable[[ClusterSettings], None],
        drain: Callable[[DrainWorker], None],
    ) -> None:
        self._settings = settings
        self._configuration = configuration
        self._apply = apply
        self._drain = drain
        self.version = configuration.version

    @property
    def problem(self) -> str | None:
        """Why it is not the one that was rolled out last, or None."""
        return self._configuration.problem

    def look(self, order: ConfigureWorker) -> tuple[Effect | None, list[SettingDifference]]:
        """What it would take to go over to a version, and what would differ.

        Raises:
            SettingsError: it is no good on this machine.
        """
        settings = self._configuration.load(_rolled_out(order))
        return effect_on_worker(self._settings, settings), changes(self._settings, settings)

    def take(self, order: ConfigureWorker) -> Effect | None:
        """Go over to a version; returns what that takes, None where it runs already.

        Raises:
            SettingsError: it is no good on this machine.
            RequestError: it cannot be kept.
        """
        if order.version == self.version == self._configuration.version:
            return None
        rolled_out = _rolled_out(order)
        settings = self._configuration.load(rolled_out)
        try:
            self._configuration.take(rolled_out)
        except OSError as error:
            raise RequestError(
                f"version {order.version} cannot be kept: {error.strerror}", code="settings"
            ) from None
        effect = effect_on_worker(self._settings, settings)
        logger.info("version %d of cluster.yaml: %s", order.version, effect or "nothing changes")
        if effect == "restart":
            self._drain(DrainWorker(deadline_ms=order.deadline_ms, restart=True))
            return effect
        self._apply(settings)
        self._settings = settings
        self.version = order.version
        return effect or "live"

    def came_up(self) -> None:
        """The worker is ready with it."""
        self._configuration.came_up()


def _rolled_out(order: ConfigureWorker) -> RolledOutVersion | None:
    return (
        RolledOutVersion(order.version, order.text or "")
        if order.version or order.dry_run
        else None
    )
