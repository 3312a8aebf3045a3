"""A `DispatchQueue` that a test drives."""

from collections.abc import Iterable
from typing import Any

from controller.dispatch.dispatch_queue import DispatchOutcome, DispatchQueue
from controller.fleet.placement import RequestPlacement
from controller.requests.instructions import SendDispatches
from controller.requests.metrics import DispatchCounts
from controller.requests.request import TrackedRequest
from controller.routing import RouteQuery, policy_named, select_worker
from shared.codec import decode
from shared.ids import BootId, ControllerId, ModelId, WorkerId
from shared.messages.dispatch import DispatchBatch, DispatchRejection, DispatchReply, DispatchResult
from shared.messages.model_status import ModelStatus
from shared.settings.controller import DispatchSettings
from tests.controller.fleet.views import Kept, Views
from tests.controller.values import request, view

MAC, BOOT = WorkerId("mac"), BootId("b1")


class Queue:
    """A queue with its time, and what it says."""

    def __init__(self, *, max_bytes: int = 1_000_000, most: int = 16, **settings: Any) -> None:
        self.now = 0.0
        self.most = most
        self.totals = DispatchCounts()
        limits = DispatchSettings(**settings)
        self.queue = DispatchQueue(ControllerId("c-1"), 7, limits, max_bytes, self.totals)
        self.requests: dict[str, TrackedRequest] = {}
        self.messages: dict[int, DispatchBatch] = {}
        self.sizes: list[int] = []

    def offer(
        self,
        name: str,
        worker: str = "mac",
        model: str = "demo",
        *,
        boot: str = "b1",
        **fields: Any,
    ) -> list[str]:
        """Returns what is sent at once, each message as the ids of its requests."""
        one = self.requests[name] = request(name, **fields)
        held = [ModelStatus(id=ModelId(model), state="warm")]
        asked = view(worker, boot=boot, models=held, dispatches_per_message=self.most)
        decision = select_worker(
            RouteQuery([ModelId(model)]), Views([asked]), Kept(), policy_named("prefix-aware"),
            now=0.0, rng=lambda: 0.5,
        )  # fmt: skip
        one.offer(decision, RequestPlacement(asked, 0.0, self.now))
        return self._read(self.queue.add(asked.report, one, self.now))

    def busy(self, worker: str = "mac", model: str = "demo") -> None:
        """The first one went just now: what comes next is held a moment."""
        assert self.offer("first", worker, model) == ["first"]

    def pass_time(self, milliseconds: float) -> list[str]:
        """What is sent meanwhile."""
        sent, lost = self.pop(milliseconds)
        assert lost == []
        return sent

    def pop(self, milliseconds: float) -> tuple[list[str], list[DispatchOutcome]]:
        self.now += milliseconds / 1000
        messages, lost = self.queue.pop_due(self.now)
        return self._read(messages), lost

    def answer(
        self, number: int, *refusals: DispatchRejection | None, boot: str = "b1"
    ) -> list[DispatchOutcome]:
        results = [
            DispatchResult(
                request_id=each.request_id,
                client=each.client,
                attempt=each.attempt,
                refusal=refusal,
            )
            for each, refusal in zip(self.messages[number].dispatches, refusals, strict=False)
        ]
        return self.reply(number, results, boot)

    def reply(
        self, number: int, results: list[DispatchResult], boot: str = "b1"
    ) -> list[DispatchOutcome]:
        reply = DispatchReply(worker=MAC, boot_id=BootId(boot), results=results)
        return self.queue.answered(number, reply, self.now)

    def _read(self, messages: Iterable[SendDispatches]) -> list[str]:
        found = []
        for each in messages:
            batch = self.messages[each.number] = decode(DispatchBatch, each.payload)
            assert (batch.owner, batch.term) == ("c-1", 7)
            self.sizes.append(len(each.payload))
            found.append(" ".join(one.request_id for one in batch.dispatches))
        return found
