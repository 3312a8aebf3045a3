"""What must hold in a cluster, at any time and after all has ended."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from types import CoroutineType

from controller.owned_request import OwnedRequest
from controller.service import Controller
from shared.bus import Message
from shared.messages.codec import decode
from shared.messages.dispatch import Dispatch, DispatchBatch, ForwardedRequest
from shared.messages.stream import Done, Failed
from shared.messages.stream import decode as decode_stream
from tests.controller.virtual.bus import VirtualBus
from tests.controller.virtual.listener import Listener


class Inspection:
    """
    Attributes:
        listeners: all inboxes of clients.
        faults: what was wrong when it happened.
        killed: controllers, at any time.
        excused: inboxes that need not hear an end, as their clients would have to ask again.
    """

    def __init__(self, controllers: Mapping[str, Controller]) -> None:
        self._controllers = controllers
        self.listeners: dict[str, Listener] = {}
        self.faults: list[str] = []
        self.excused: set[str] = set()
        self.killed: set[str] = set()
        self._told_end: set[str] = set()
        self._usual_tasks = Counter[str]()

    def begin(self) -> None:
        """Nothing is to be done now."""
        self._usual_tasks = _tasks()

    def watch(self, connection: str, subject: str, payload: bytes) -> None:
        """Look at all that is published. Nothing is dispatched for those to whom its controller
        has told the end, and of a session only the first request that has not ended."""
        if connection not in self._controllers:
            return
        if subject in self.listeners:
            if isinstance(decode_stream(payload)[0], Done | Failed):
                self._told_end.add(subject)
        elif subject.startswith("mlx.worker.") and subject.endswith(".infer"):
            for dispatch in decode(DispatchBatch, payload).dispatches:
                self._check(dispatch, self._active(connection))

    def _check(self, dispatch: Dispatch, active: list[OwnedRequest]) -> None:
        key = dispatch.client, dispatch.request_id
        mine = next((request for request in active if request.key == key), None)
        if mine is None or self._told_end & {*dispatch.inboxes}:
            self.faults.append(f"{key} was dispatched after its end")
        elif mine.session is not None:
            turns = [request for request in active if request.session == mine.session]
            if turns[0] is not mine:
                self.faults.append(f"{key} was dispatched before its turn")

    def excuse(self, lost: Iterable[Message]) -> None:
        """Whose requests are among what was lost may hear nothing: before its acceptance a request
        may vanish."""
        for message in lost:
            if message.subject.startswith("mlx.infer."):
                self.excused.add(message.reply)
            elif message.subject.startswith("mlx.controller."):
                self.excused.add(decode(ForwardedRequest, message.payload).reply)

    def unsettled(self) -> list[str]:
        """What has not ended."""
        left = any(controller.state == "stopped" for controller in self._controllers.values())
        lost = bool(self.killed)
        unheard = [
            one
            for one in self.listeners.values()
            if one.owed and one.end is None and one.inbox not in self.excused
            if one.messages or not left  # else a controller may have left before it took it
            if not (lost and one.anonymous)  # it went with a controller that no worker had it of
        ]
        return [
            *(f"no end: {one}" for one in unheard),
            *(f"{id} still has {_about(r)}" for id in self._controllers for r in self._kept(id)),
        ]

    def ends(self, *, prompt: bool) -> list[str]:
        """What is wrong with the ends that clients heard.

        Args:
            prompt: no message was late; else a worker may have begun what another one served.
        """
        wrong = []
        for one in self.listeners.values():
            if one.end == "internal_error":
                wrong.append(f"a fault of the cluster: {one}")
            if one.end == "deadline_exceeded" and not one.hurried:
                wrong.append(f"ended before its time: {one}")
            if prompt and one.unannounced:
                wrong.append(f"answered from several generations: {one}")
            if prompt and len({(end.attempt, end.worker) for end in one.terminals}) > 1:
                wrong.append(f"answered twice: {one}")
        return wrong

    def books(self) -> list[str]:
        """What controllers still count some time after the last end."""
        wrong = []
        for id, controller in self._controllers.items():
            if controller.state == "stopped" or self._is_killed(id):
                continue
            for view in controller._registry.workers:
                books = view.load, view.unreported, view.unreported_ms, view._asked, view._taken
                if (*books, view.choices, view.unreported_choices) != (0, 0, 0.0, {}, {}, 0, 0):
                    wrong.append(f"{id} counts at {view.id}: {books}")
                if view.breaker is not None and view.breaker._trials:
                    wrong.append(f"{id} tries {view.id}: {view.breaker._trials}")
            requests = controller._requests
            left = requests._turns._turns, requests._turns._waiting, requests._pauses
            if any(left):
                wrong.append(f"{id} still has {left}")
        if not self.killed:
            wrong += [f"a task is left: {name}" for name in _tasks() - self._usual_tasks]
        return wrong

    def _kept(self, id: str) -> list[OwnedRequest]:
        """What a controller has still to end; one that left leaves to others what workers have."""
        if self._is_killed(id):
            return []
        has_left = self._controllers[id].state == "stopped"
        return [r for r in self._active(id) if not (has_left and r.state == "running")]

    def _is_killed(self, id: str) -> bool:
        bus = self._controllers[id]._bus
        assert isinstance(bus, VirtualBus)
        return bus.process.killed

    def _active(self, id: str) -> list[OwnedRequest]:
        return self._controllers[id]._requests._ledger.active


def _about(request: OwnedRequest) -> str:
    state = request.state, request.attempt, request.worker, request.boot_id
    return f"{request.request_id} {state}"


def _tasks() -> Counter[str]:
    """The coroutines of controllers that run as tasks."""
    names: Counter[str] = Counter()
    for task in asyncio.all_tasks():
        coroutine = task.get_coro()
        assert isinstance(coroutine, CoroutineType)
        frame = coroutine.cr_frame
        if frame is not None and frame.f_globals["__name__"].startswith("controller."):
            names[coroutine.__qualname__] += 1
    return names
