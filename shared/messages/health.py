"""Replies on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.codec import WireMessage, WireMessagePart
from shared.ids import ControllerId, ModelId, SkillName
from shared.messages.base import Count
from shared.messages.controller_report import ControllerReport
from shared.messages.worker_report import WorkerReport


class ControllerHealth(WireMessage):
    """`ready`: the controller accepts requests; `live` is true in every reply."""

    live: bool = True
    ready: bool
    controller: ControllerReport


class WorkerHealth(WireMessage):
    live: bool = True
    ready: bool
    worker: WorkerReport


class LeaderInfo(WireMessagePart):
    """The leader and its term."""

    id: ControllerId
    term: Count


class ClusterHealth(WireMessage):
    """The state of the whole cluster, from the leader.

    `status` is ready if at least one worker is, degraded if some worker is not.
    """

    status: Literal["ready", "degraded", "unavailable"]
    leader: LeaderInfo | None = None
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
