"""Replies on `mlx.health.*`. Fields may be added; none is ever renamed."""

from typing import Literal

from shared.codec import WireMessage, WireMessagePart
from shared.ids import ControllerId, ModelId, SkillName, WorkerId
from shared.messages.base import Term
from shared.messages.controller_report import ControllerReport
from shared.messages.sender import Sender, SentMessage
from shared.messages.worker_report import WorkerReport


class ControllerHealth(SentMessage):
    """`ready`: the controller accepts requests; `live` is true in every reply."""

    live: bool = True
    ready: bool
    controller: ControllerReport

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.controller.id, self.controller.boot_id),)


class WorkerHealth(SentMessage):
    live: bool = True
    ready: bool
    worker: WorkerReport

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.worker.id, self.worker.boot_id),)


class LeaderInfo(WireMessagePart):
    """The leader and its term."""

    id: ControllerId
    term: Term


class IgnoredProcess(WireMessagePart):
    """A worker or controller whose messages are ignored: it speaks another protocol version."""

    kind: Literal["worker", "controller"]
    id: str
    protocol: int


class UnclaimedWorker(WireMessagePart):
    """A worker that accepts no work from the leader, because it was claimed in a later `term` that
    no leader is known to have had. When it restarts, the leader claims it."""

    id: WorkerId
    term: Term


class ClusterHealth(WireMessage):
    """The state of the whole cluster, from the leader.

    `status` is ready if at least one worker is, degraded if some worker is not.

    Attributes:
        ignored: processes of another protocol version; they are in no other field.
        unclaimed: workers that accept no work from the leader; `status` does not count them as
            ready.
    """

    status: Literal["ready", "degraded", "unavailable"]
    leader: LeaderInfo | None = None
    skills: dict[SkillName, list[ModelId]]
    controllers: list[ControllerReport]
    workers: list[WorkerReport]
    ignored: list[IgnoredProcess] = []
    unclaimed: list[UnclaimedWorker] = []
