"""The tree of settings with its defaults. Frozen; unknown keys are refused.

Units stand in the names. A section that is a capability has `enabled`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.ids import NAME_PATTERN, ModelId, SkillName
from shared.settings.base import DEMO_MODEL, Model, SettingsSection
from shared.settings.controller import ControllerSettings
from shared.settings.gateway import GatewaySettings
from shared.settings.models import ModelSource
from shared.settings.nats import DiscoverySettings, NatsSettings, SecuritySettings
from shared.settings.worker import WorkerSettings


class LoggingSettings(SettingsSection):
    """`file`: for JSON lines, instead of stderr; begun anew when somebody renames it."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    file: Annotated[str, Field(min_length=1)] | None = None


class WorkerMatch(SettingsSection):
    """Which workers an override is for: those for which all holds that is said.

    `workers`: names, where `*` stands for anything; `chip`: a part of its name; `labels`: all of
    them."""

    workers: Annotated[list[str], Field(min_length=1)] | None = None
    labels: dict[str, str] = {}
    chip: Annotated[str, Field(min_length=1)] | None = None
    min_memory_gb: float | None = Field(None, ge=0)
    max_memory_gb: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("says nothing: what is for all workers stands in `worker`")
        return self


class WorkerOverride(SettingsSection):
    """Settings of the workers that `match`; later ones win. `worker` and `logging` as at the top
    level, with only what differs."""

    match: WorkerMatch
    worker: dict[str, Any] = {}
    logging: dict[str, Any] = {}


class ClusterSettings(BaseSettings):
    """All of cluster.yaml. Build it with `load_settings`, which names the source of errors."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="CLUSTER__",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        nested_model_default_partial_update=True,
    )

    security: SecuritySettings = SecuritySettings()
    nats: NatsSettings = NatsSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    gateway: GatewaySettings = GatewaySettings()
    skills: dict[Annotated[SkillName, Field(pattern=NAME_PATTERN)],
                 Annotated[list[Model], Field(min_length=1)]] = {
        SkillName("chat"): [DEMO_MODEL]
    }  # fmt: skip
    models: dict[Model, ModelSource] = {}
    controller: ControllerSettings = ControllerSettings()
    worker: WorkerSettings = WorkerSettings()
    logging: LoggingSettings = LoggingSettings()
    overrides: Annotated[list[WorkerOverride], Field(max_length=256)] = []

    @property
    def served_models(self) -> list[ModelId]:
        """What a worker serves: by default every model that skills or aliases name."""
        if self.worker.models is not None:
            return self.worker.models
        named = [model for models in self.skills.values() for model in models]
        return list(dict.fromkeys([*named, *self.models]))

    @property
    def pre_warmed_models(self) -> list[ModelId]:
        """The models to warm, high priority first; by default the first one of each skill."""
        settings = self.worker.pre_warming
        if not settings.enabled:
            return []
        if settings.models is None:
            preferred = dict.fromkeys(models[0] for models in self.skills.values())
            return list(dict.fromkeys(self.worker.models or preferred))
        rank = {"high": 0, "medium": 1, "low": 2}
        by_priority = sorted(settings.models, key=lambda entry: rank[entry.priority])
        return list(dict.fromkeys(entry.model for entry in by_priority))
