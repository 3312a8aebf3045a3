"""Replies on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.codec import InternalMessage, InternalMessagePart
from shared.ids import ControllerId, ModelId, SkillName
from shared.messages.base import Count
from shared.messages.controller_report import ControllerReport
from shared.messages.worker_report import WorkerReport


class ControllerHealth(InternalMessage):
    """`ready`: the controller accepts requests; `live` is true in every reply."""

    live: bool = True
    ready: bool
    controller: ControllerReport


class WorkerHealth(InternalMessage):
    live: bool = True
    ready: bool
    worker: WorkerReport


class LeaderInfo(InternalMessagePart):
    """The leader and its term."""

    id: ControllerId
    term: Count


class ClusterHealth(InternalMessage):
    """The state of the whole cluster, from the leader.

    `status` is ready if at least one worker is, degraded if some worker is not.
    """

    status: Literal["ready", "degraded", "unavailable"]
    leader: LeaderInfo | None = None
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
