"""Reconfiguration: switches to another version of cluster.yaml while the worker serves."""

import logging
from collections.abc import Callable

from shared.errors import RequestError
from shared.messages.control import ConfigureWorker, DrainWorker
from shared.settings import ClusterSettings
from shared.settings.changes import Effect, SettingDifference, changes, effect_on_worker
from shared.settings.rolled_out import RolledOutVersion
from worker.agent.configuration import RolledOutConfiguration

logger = logging.getLogger(__name__)


class ConfigSwitcher:
    """
    Args:
        settings: the settings that the worker runs with.
        apply: applies settings that need no restart to all parts.
        drain: drains the worker and restarts it.

    Attributes:
        version: the version that the worker runs; 0 for the machine's own file.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        configuration: RolledOutConfiguration,
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
        """Why the version is not the one that was rolled out last, or None."""
        return self._configuration.problem

    def preview(self, order: ConfigureWorker) -> tuple[Effect | None, list[SettingDifference]]:
        """Return the effect that a switch to a version would have, and the changed settings.

        Raises:
            SettingsError: the version is invalid on this machine.
        """
        settings = self._configuration.load(_rolled_out(order))
        return effect_on_worker(self._settings, settings), changes(self._settings, settings)

    def switch(self, order: ConfigureWorker) -> Effect | None:
        """Switch to a version; returns the effect, None if the worker runs it already.

        Raises:
            SettingsError: the version is invalid on this machine.
            RequestError: the version cannot be stored.
        """
        if order.version == self.version == self._configuration.version:
            return None
        rolled_out = _rolled_out(order)
        settings = self._configuration.load(rolled_out)
        try:
            self._configuration.switch(rolled_out)
        except OSError as error:
            raise RequestError(
                f"version {order.version} cannot be stored: {error.strerror}", code="settings"
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

    def on_ready(self) -> None:
        """Confirm the version: the worker is ready with it."""
        self._configuration.on_ready()


def _rolled_out(order: ConfigureWorker) -> RolledOutVersion | None:
    return (
        RolledOutVersion(order.version, order.text or "")
        if order.version or order.dry_run
        else None
    )
