"""Values for tests: worker reports and requests with short names."""

from typing import Any

from controller.fleet.worker_view import WorkerView
from controller.requests.request import TrackedRequest
from shared.ids import BootId, ClientName, ModelId, RequestId, SkillName, WorkerId
from shared.messages.model_status import ModelState, ModelStatus
from shared.messages.request import InferenceRequest
from shared.messages.worker_report import WorkerReport

DEMO = ModelId("demo")
ADA = ClientName("ada")
CHAT = SkillName("chat")


def report(worker: str, *, boot: str = "b1", **fields: Any) -> WorkerReport:
    """A ready worker that holds `demo` warm, unless told otherwise."""
    values: dict[str, Any] = {
        "id": WorkerId(worker),
        "boot_id": BootId(boot),
        "version": "0.1.0",
        "state": "ready",
        "max_batch_size": 8,
        "max_queue_depth": 10,
        "models": models(demo="warm"),
    }
    return WorkerReport(**{**values, **fields})


def view(worker: str, **fields: Any) -> WorkerView:
    return WorkerView(report(worker, **fields), seen_at=0.0)


def models(**states: ModelState) -> list[ModelStatus]:
    return [
        ModelStatus(id=ModelId(name), state=state, error="no space" if state == "failed" else None)
        for name, state in states.items()
    ]


def able(*abilities: str) -> list[ModelStatus]:
    """`demo`, warm, where it has these abilities."""
    return [ModelStatus(id=DEMO, state="warm", abilities=list(abilities))]


def request(request_id: str = "r", *, now: float = 0.0, **fields: Any) -> TrackedRequest:
    """As Ada asks it."""
    body = InferenceRequest(**{"prompt": "x", **fields})
    return TrackedRequest.arrived(
        ADA,
        CHAT,
        ["_INBOX.x"],
        body,
        [DEMO],
        request_id=RequestId(request_id),
        seed=5,
        now=now,
    )
