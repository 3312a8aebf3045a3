"""Answers on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.codec import InternalMessage, InternalPart
from shared.ids import ControllerId, ModelId, SkillName
from shared.messages.events import ControllerReport, Count, WorkerReport


class ControllerHealth(InternalMessage):
    """`ready`: it takes requests; `live` is true whenever it can answer."""

    live: bool = True
    ready: bool
    controller: ControllerReport


class WorkerHealth(InternalMessage):
    live: bool = True
    ready: bool
    worker: WorkerReport


class Leader(InternalPart):
    """The controller that leads, and its term."""

    id: ControllerId
    term: Count


class ClusterHealth(InternalMessage):
    """The whole cluster, as the controller that leads sees it.

    `status` is ready when at least one worker is, degraded when some worker is not.
    """

    status: Literal["ready", "degraded", "unavailable"]
    leader: Leader | None = None
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
