"""Values for tests: worker reports and owned requests with short names."""

from typing import Any

from controller.fleet.worker_view import WorkerView
from controller.owned_request import OwnedRequest
from shared.ids import BootId, ClientName, ModelId, RequestId, SkillName, WorkerId
from shared.messages.events import ModelState, ModelStatus, WorkerReport
from shared.messages.request import InferenceRequest

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


def owned(request_id: str = "r", **fields: Any) -> OwnedRequest:
    return OwnedRequest(
        request_id=RequestId(request_id),
        client=ADA,
        skill=CHAT,
        inboxes=["_INBOX.x"],
        request=InferenceRequest(**{"prompt": "x", **fields}),
        models=[DEMO],
        seed=5,
    )
