"""The HTTP endpoint for metrics."""

from typing import Annotated

from pydantic import Field

from shared.settings.base import SettingsSection


class MetricsSettings(SettingsSection):
    """The HTTP endpoint of a process for its metrics, in Prometheus' text format."""

    enabled: bool = False
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: int = Field(9464, ge=0, le=65535)


class WorkerMetricsSettings(MetricsSettings):
    """The same of a worker, which has another port where a controller runs, too."""

    port: int = Field(9465, ge=0, le=65535)
