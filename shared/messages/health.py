"""Answers on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.ids import ControllerId, ModelId, SkillName
from shared.messages.codec import Internal, Part
from shared.messages.events import ControllerReport, Count, WorkerReport


class ControllerHealth(Internal):
    """`ready`: it takes requests; `live` is true whenever it can answer."""

    live: bool = True
    ready: bool
    controller: ControllerReport


class WorkerHealth(Internal):
    live: bool = True
    ready: bool
    worker: WorkerReport


class Leader(Part):
    """The controller that leads, and its term."""

    id: ControllerId
    term: Count


class ClusterHealth(Internal):
    """The whole cluster, as the controller that leads sees it.

    `status` is ready when at least one worker is, degraded when some worker is not.
    """

    status: Literal["ready", "degraded", "unavailable"]
    leader: Leader | None = None
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
