"""Answers on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.ids import ModelId, SkillName
from shared.messages.codec import Internal
from shared.messages.events import ControllerReport, WorkerReport


class ControllerHealth(Internal):
    """`ready`: it takes requests; `live` is true whenever it can answer."""

    live: bool = True
    ready: bool
    controller: ControllerReport


class WorkerHealth(Internal):
    live: bool = True
    ready: bool
    worker: WorkerReport


class ClusterHealth(Internal):
    """The whole cluster, as one controller sees it.

    `status` is ready when at least one worker is, degraded when some worker is not.
    """

    status: Literal["ready", "degraded", "unavailable"]
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
