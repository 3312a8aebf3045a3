"""The state of a controller."""

from typing import Literal

from pydantic import Field

from shared.codec import WireMessage, WireMessagePart
from shared.ids import NAME_PATTERN, BootId, ControllerId, WorkerId
from shared.messages.base import Count, Term

ControllerState = Literal["starting", "ready", "draining", "stopped"]


class ControllerReport(WireMessagePart):
    """The state of a controller, in heartbeats and health replies.

    Attributes:
        active_requests, accepted_requests, completed_requests, rejected_requests, failed_requests:
            of clients; a list of prompts counts as one. Rejected requests ended because of an error
            in the request.
        waiting_requests: requests in the wait queue; a list counts per prompt.
        retries: failed attempts that were followed by another one.
        migrations: those among them that had emitted tokens.
        adoptions: requests that were taken over from dead controllers.
        sticky_turns, moved_turns: turns of sessions that were served by the worker of the previous
            turn, and by another one.
        breakers: open and half-open circuit breakers, by worker.
        leader: it leads: only the leader accepts requests.
        term: its own, or that of the last known leader; rises with each leader.
        leader_problem: why it can never lead in this state, or None.
        config_version: of the rolled-out cluster.yaml; 0 for the machine's own file.
        needs_restart: some settings of this version take effect only after a restart.
    """

    id: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    version: str
    state: ControllerState
    active_requests: Count = 0
    accepted_requests: Count = 0
    completed_requests: Count = 0
    rejected_requests: Count = 0
    failed_requests: Count = 0
    waiting_requests: Count = 0
    retries: Count = 0
    migrations: Count = 0
    adoptions: Count = 0
    sticky_turns: Count = 0
    moved_turns: Count = 0
    breakers: dict[WorkerId, Literal["half-open", "open"]] = {}
    workers: Count = 0
    leader: bool = False
    term: Term = 0
    leader_problem: str | None = None
    config_version: Count = 0
    needs_restart: bool = False
    uptime_s: float = 0.0
    tasks: Count = 0


class LeaseRecord(WireMessage):
    """The leader's lease in JetStream.

    Attributes:
        term: one higher than that of the previous leader. Every order of a leader carries it, and
            attempts of term t are counted from 1000 * (t - 1) + 1, so that no number is used twice.
        released: the controller does not lead any more; another one may lead at once.
    """

    controller: ControllerId = Field(pattern=NAME_PATTERN)
    boot_id: BootId = Field(pattern=NAME_PATTERN)
    term: Term = 0
    released: bool = False
