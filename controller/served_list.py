"""A list of prompts while it is served: which of them are on their way, and how it stands.

Plain state with the clock passed in: no I/O.
"""

import math
from dataclasses import dataclass, field

from controller.list_pace import ListPace
from controller.merged_answer import MergedAnswer
from controller.owned_request import OwnedRequest
from controller.prompt_list import part_of
from controller.routing.choice import Fleet
from controller.routing.need import Need
from controller.routing.obstacles import PASSING, find_obstacle
from controller.worker_view import WorkerView
from shared.client.assembler import Assembler
from shared.client.recovery import Recovery, Situation
from shared.ids import ModelId
from shared.inboxes import PROBE_INTERVAL_S, Inboxes
from shared.messages.stream import KEEP_ALIVE_S, Status, StatusName

_FARTHEST: tuple[StatusName | None, ...] = (
    None, "accepted", "queued", "loading", "preempted", "migrating", "prefill", "running"
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Part:
    """One prompt on its way, or with a worker, and what its stream said so far."""

    whole: "ServedList"
    prompt: int
    request: OwnedRequest
    assembler: Assembler
    recovery: Recovery

    @property
    def seeks(self) -> bool:
        """Whether no worker has it yet."""
        return self.request.state in ("accepted", "dispatching")

    @property
    def served(self) -> bool:
        """Whether a worker has it, or had."""
        return self.request.state in ("running", "finished")

    def situation(self, *, connected: bool, connections: int) -> Situation:
        """What its stream's recovery depends on."""
        return Situation(
            connected=connected,
            connections=connections,
            heard=self.assembler.heard,
            started=self.assembler.started,
            worker_known=self.request.worker is not None,
            missing=self.assembler.missing_from is not None,
        )


@dataclass(slots=True, eq=False)
class ServedList:
    """
    Attributes:
        inboxes: of its client.
        parts: prompts that went, and have not ended.
        places: in batches, of the workers that could serve them, as counted last at `counted_at`.
        begun: a worker took one of them.
    """

    request: OwnedRequest
    inboxes: Inboxes
    pace: ListPace
    answer: MergedAnswer
    parts: dict[int, Part] = field(default_factory=dict)
    places: int = 0
    counted_at: float = -math.inf
    begun: bool = False

    @classmethod
    def of(cls, request: OwnedRequest, now: float) -> "ServedList":
        """`now` is on the clock of its inboxes."""
        body = request.request
        pace = ListPace(len(body.prompts), body.n)
        return cls(request, Inboxes(request.inboxes, now), pace, MergedAnswer(request))

    def send_next(self, inbox: str, now: float, connections: int) -> Part | None:
        """The prompt that goes now, if any; its stream shall come to `inbox`."""
        if self.request.ended or self.pace.over:
            return None
        self.begun = self.begun or any(part.served for part in self.parts.values())
        if self.pace.refused is not None and not self.begun:
            return None  # where not one finds a place, the list is refused
        seeking = sum(part.seeks for part in self.parts.values())
        prompt = self.pace.next(now, served=len(self.parts), seeking=seeking, places=self.places)
        if prompt is None:
            return None
        request = part_of(self.request, prompt, inbox)
        assembler = Assembler(request.request_id, choices=request.request.n)
        part = Part(self, prompt, request, assembler, Recovery(now, connections))
        self.parts[prompt] = part
        return part

    def is_silent(self, now: float) -> bool:
        """Whether its client should hear a status now."""
        interval_s = PROBE_INTERVAL_S if self.inboxes.doubtful else KEEP_ALIVE_S
        return not self.request.ended and now - self.request.last_sent_at >= interval_s

    def status(self) -> Status:
        """How its farthest prompt stands."""
        origin = self.request.request_id, 0, None
        if self.answer.tokens:
            return Status(*origin, "running")

        def rank(part: Part) -> int:
            return _FARTHEST.index(part.assembler.status)

        first = max(self.parts.values(), key=rank, default=None)
        if first is None or first.assembler.status in (None, "accepted"):
            return Status(*origin, "queued")
        return Status(*origin, first.assembler.status, first.assembler.progress)


def places_for(request: OwnedRequest, fleet: Fleet, now: float) -> int:
    """In batches, of the workers that could serve a request if they had room: of its first model
    that any of them has; of those that have it warm, if there are some."""
    body = request.request
    need = Need(request.models, body.requires, body.level)
    for model in request.models:
        views = fleet.warm(model)
        if not views or body.requires is not None:
            views = [view for view in fleet.holding(model) if _fits(view, model, need, now)]
        if places := sum(_places(view, model) for view in views):
            return places
    return 0


def _fits(view: WorkerView, model: ModelId, need: Need, now: float) -> bool:
    obstacle = find_obstacle(view, model, need, now)
    return obstacle is None or obstacle.code in PASSING


def _places(view: WorkerView, model: ModelId) -> int:
    return view.models[model].speed.rows or view.report.max_batch_size
