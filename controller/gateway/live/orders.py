"""Orders of people who watch the cluster. They go the same way as those of `cluster`."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, RootModel

from controller.gateway.live.rights import Caller
from shared.bus import Bus
from shared.client import Cluster
from shared.codec import StrictInput
from shared.errors import ClusterError, RequestError
from shared.ids import (
    ID_PATTERN,
    LOCAL_CLIENT,
    NAME_PATTERN,
    ClientName,
    ModelId,
    RequestId,
    WorkerId,
)
from shared.messages import control
from shared.messages.rollout import PauseRollout, ResumeRollout, RollBack

_Client = Annotated[ClientName, Field(pattern=NAME_PATTERN)]
_Worker = Annotated[WorkerId, Field(pattern=NAME_PATTERN)]
_Model = Annotated[ModelId, Field(min_length=1, max_length=1000)]
_Session = Annotated[str, Field(min_length=1, max_length=256)]


class CancelOrder(StrictInput):
    """Cancels a request of a client."""

    order: Literal["cancel"]
    client: _Client
    request_id: Annotated[RequestId, Field(pattern=ID_PATTERN)]


class ModelOrder(StrictInput):
    """Loads or unloads a model on a worker."""

    order: Literal["load", "unload"]
    model: _Model
    worker: _Worker


class PinOrder(StrictInput):
    """Protects a model from eviction until its worker restarts, or ends the protection."""

    order: Literal["pin"]
    model: _Model
    worker: _Worker
    pinned: bool


class RolloutOrder(StrictInput):
    """Pauses, resumes or rolls back the current roll-out."""

    order: Literal["pause", "resume", "roll_back"]


class PinSessionOrder(StrictInput):
    """Protects a session and its cached blocks from eviction, or ends the protection."""

    order: Literal["pin_session"]
    client: _Client
    session_id: _Session
    worker: _Worker
    pinned: bool


class ForgetSessionOrder(StrictInput):
    """Deletes the messages of a session and the cached blocks that only it uses."""

    order: Literal["forget_session"]
    client: _Client
    session_id: _Session
    worker: _Worker


Order = Annotated[
    CancelOrder | ModelOrder | PinOrder | RolloutOrder | PinSessionOrder | ForgetSessionOrder,
    Field(discriminator="order"),
]


class OrderBody(RootModel[Order]):
    """The body of `POST /cluster/orders`."""

    model_config = ConfigDict(frozen=True, strict=True)


class OrderService:
    """Performs orders over NATS."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cluster = Cluster(bus, LOCAL_CLIENT)

    async def perform(self, order: Order, caller: Caller) -> str:
        """Perform an order, and return a sentence about it.

        Raises:
            ClusterError: `not_allowed`: the caller may not give the order; or the error with which
                the worker or the leader refused it.
        """
        check_allowed(order, caller)
        match order:
            case CancelOrder():
                state = await Cluster(self._bus, order.client).cancel(order.request_id)
                if state.state == "unknown":
                    raise RequestError(f"no request {order.request_id!r}", code="not_found")
                if state.state in ("finished", "failed"):
                    return f"{order.request_id} has ended"
                return f"{order.request_id} is being cancelled"
            case ModelOrder(order="load"):
                await self._control(order.worker, control.LoadModel(model=order.model))
                return f"{order.worker} loads {order.model}"
            case ModelOrder():
                await self._control(order.worker, control.UnloadModel(model=order.model))
                return f"{order.worker} unloaded {order.model}"
            case PinOrder():
                pin = control.PinModel(model=order.model, pinned=order.pinned)
                await self._control(order.worker, pin)
                return f"{order.model} is {_pinned(order.pinned)} on {order.worker}"
            case PinSessionOrder():
                await self._control(
                    order.worker,
                    control.PinSession(
                        client=order.client, session_id=order.session_id, pinned=order.pinned
                    ),
                )
                return f"session {order.session_id} is {_pinned(order.pinned)}"
            case ForgetSessionOrder():
                await self._control(
                    order.worker,
                    control.ForgetSession(client=order.client, session_id=order.session_id),
                )
                return f"session {order.session_id} is forgotten"
            case RolloutOrder(order="pause"):
                await self._cluster.rollout(PauseRollout())
                return "the roll-out is paused"
            case RolloutOrder(order="resume"):
                await self._cluster.rollout(ResumeRollout())
                return "the roll-out continues"
            case RolloutOrder():
                await self._cluster.rollout(RollBack(by="page"))
                return "the roll-out is being rolled back"

    async def _control(self, worker: WorkerId, order: control.ControlOrder) -> None:
        reply = await self._cluster.control(worker, order)
        if not reply.ok:
            raise RequestError(reply.message or f"{worker} refused", code=reply.code)


def check_allowed(order: Order, caller: Caller) -> None:
    """
    Raises:
        ClusterError: `not_allowed`.
    """
    if caller.rights == "admin":
        return
    if caller.rights == "own" and isinstance(order, CancelOrder):
        if order.client == caller.key.client:
            return
        raise ClusterError("the request is of another client", code="not_allowed")
    raise ClusterError(
        "orders need an API key with `admin: true`: `gateway keys add NAME --admin`",
        code="not_allowed",
    )


def _pinned(pinned: bool) -> str:
    return "pinned" if pinned else "no longer pinned"
