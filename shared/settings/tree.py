"""The tree of settings with its defaults. Frozen; unknown keys are rejected.

Names include the unit. A section of a feature that can be disabled has `enabled`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.ids import NAME_PATTERN, ModelId, SkillName
from shared.settings.base import DEMO_MODEL, Model, SettingsSection
from shared.settings.controller import ControllerSettings
from shared.settings.gateway import GatewaySettings
from shared.settings.models import ModelSettings
from shared.settings.nats import ClientIsolationSettings, DiscoverySettings, NatsSettings
from shared.settings.telemetry import TelemetrySettings
from shared.settings.worker import WorkerSettings


class LoggingSettings(SettingsSection):
    """`file`: for JSON lines, instead of stderr; a new one is created after a rename."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    file: Annotated[str, Field(min_length=1)] | None = None


class WorkerSelector(SettingsSection):
    """The condition of an override: a worker matches if all given fields match.

    `workers`: names, with `*` as a wildcard; `chip`: a part of the chip's name; `labels`: all must
    be equal."""

    workers: Annotated[list[str], Field(min_length=1)] | None = None
    labels: dict[str, str] = {}
    chip: Annotated[str, Field(min_length=1)] | None = None
    min_memory_gb: float | None = Field(None, ge=0)
    max_memory_gb: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("has no condition; settings of all workers belong to `worker`")
        return self


class WorkerOverride(SettingsSection):
    """Settings of the workers that `match`; later overrides win. `worker` and `logging` are as at
    the top level, with only the differences."""

    match: WorkerSelector
    worker: dict[str, Any] = {}
    logging: dict[str, Any] = {}


class ClusterSettings(BaseSettings):
    """All of cluster.yaml. Create it with `load_settings`, which reports the source of errors."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="CLUSTER__",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        nested_model_default_partial_update=True,
    )

    security: ClientIsolationSettings = ClientIsolationSettings()
    nats: NatsSettings = NatsSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    gateway: GatewaySettings = GatewaySettings()
    skills: dict[Annotated[SkillName, Field(pattern=NAME_PATTERN)],
                 Annotated[list[Model], Field(min_length=1)]] = {
        SkillName("chat"): [DEMO_MODEL]
    }  # fmt: skip
    models: dict[Model, ModelSettings] = {}
    controller: ControllerSettings = ControllerSettings()
    worker: WorkerSettings = WorkerSettings()
    logging: LoggingSettings = LoggingSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    overrides: Annotated[list[WorkerOverride], Field(max_length=256)] = []

    @property
    def served_models(self) -> list[ModelId]:
        """The models that a worker serves: by default every model in `skills` and `models`."""
        if self.worker.models is not None:
            return self.worker.models
        named = [model for models in self.skills.values() for model in models]
        return list(dict.fromkeys([*named, *self.models]))

    @property
    def pre_warmed_models(self) -> list[ModelId]:
        """The models to load at start, high priority first; by default the first of each skill."""
        settings = self.worker.pre_warming
        if not settings.enabled:
            return []
        if settings.models is None:
            preferred = dict.fromkeys(models[0] for models in self.skills.values())
            return list(dict.fromkeys(self.worker.models or preferred))
        rank = {"high": 0, "medium": 1, "low": 2}
        by_priority = sorted(settings.models, key=lambda entry: rank[entry.priority])
        return list(dict.fromkeys(entry.model for entry in by_priority))
