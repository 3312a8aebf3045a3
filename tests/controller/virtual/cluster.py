"""A whole cluster in one process and in virtual time: controllers, workers, clients.

Nothing in it is simulated but time, the server, and what engines generate.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, assert_never

from controller.service import Controller
from shared import subjects
from shared.ids import ClientName, ControllerId, SkillName
from shared.logs import LogStore
from shared.service import StopRequest
from shared.settings import ClusterSettings
from tests.controller.virtual.bus import VirtualBus
from tests.controller.virtual.inspection import Inspection
from tests.controller.virtual.listener import Listener
from tests.controller.virtual.network import VirtualNetwork
from tests.controller.virtual.steps import (
    CONTROLLERS,
    REQUESTS,
    WORKERS,
    Ask,
    CancelIt,
    CrashEngine,
    Crowd,
    Cut,
    Drain,
    Generate,
    Kill,
    KillClient,
    KillController,
    Leave,
    Pace,
    Restart,
    Say,
    SlowFrom,
    SlowTo,
    StartController,
    Step,
    Stop,
    Wait,
)
from tests.controller.virtual.worker import VirtualWorker

SETTINGS = ClusterSettings.model_validate(
    {
        "skills": {"chat": ["demo"]},
        "controller": {"waiting_room": {"max_wait_ms": 250}},
        "worker": {
            "continuous_batching": {"max_batch_size": 1},
            "request_queue": {"max_depth": 2},
            "resource_limits": {"enabled": False},
        },
    }
)
_CLIENT = ClientName("local")
PROCESS_FAULT = KillController | StartController | Stop | KillClient
_SILENCE_S = 3.0
_UNHEARD_S = 1.0
_SETTLED_S = 1.6
_LOOK_S = 0.25
_QUIET_S = 2.0
_LAST_WORDS_S = 5.5
"""So long a controller waits for the answer to a question, or for one who has died."""
_PATIENCE_S = 25.0
"""Without a disturbance everything ends in this time."""

BODIES: tuple[dict[str, Any], ...] = (
    {"request_id": "r0", "prompt": "x"},
    {"request_id": "r1", "prompt": "x", "stream": False},
    {"request_id": "r2", "messages": [{"role": "user", "content": "x"}], "session_id": "s"},
    {"request_id": "r3", "messages": [{"role": "user", "content": "y"}], "session_id": "s"},
    {"request_id": "r4", "prompt": "x", "session_id": "s", "stream": False, "timeout_ms": 2000},
    {"request_id": "r5", "prompt": "x", "timeout_ms": 1500, "priority": "high"},
    {"request_id": "r6", "prompt": "x", "priority": "low", "n": 2},
    {"request_id": "r0", "prompt": "not that of the first one"},
    {"request_id": "r8", "prompt": ["x", "y"]},
    {"prompt": "x"},
)
assert len(BODIES) == REQUESTS


async def follow_steps(steps: Sequence[Step], *, asks_again: bool = False) -> None:
    """Do these steps in a new cluster, then wait until all has ended; `asks_again` as there.

    Raises:
        AssertionError: a promise was broken.
    """
    cluster = VirtualCluster(asks_again=asks_again)
    await cluster.start()
    for step in steps:
        await cluster.do(step)
    await cluster.settle()
    await cluster.check()
    await cluster.close()


class VirtualCluster:
    """Made in the loop of `run_in_virtual_time`."""

    def __init__(self, settings: ClusterSettings = SETTINGS, *, asks_again: bool = False) -> None:
        """`asks_again`: clients publish again what they hear nothing of."""
        self._boots = 1
        self._asks_again = asks_again
        self._settings = settings
        self.network = VirtualNetwork()
        self.client = VirtualBus(self.network, "client")
        self._last: dict[int, Listener] = {}
        self.controllers = {name: self._new_controller(name) for name in CONTROLLERS}
        self.workers: dict[str, VirtualWorker] = {}
        self.inspection = Inspection(self.controllers)
        self._stops: dict[str, StopRequest] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._prompt = True

    async def start(self) -> None:
        """All know each other afterwards."""
        self.network.on_publish.append(self.inspection.watch)
        for name in CONTROLLERS:
            self._start_controller(name)
        for name in WORKERS:
            await self._start_worker(name, 1)
        await asyncio.sleep(_SETTLED_S)
        self.inspection.begin()

    async def do(self, step: Step) -> None:
        if isinstance(step, SlowFrom | SlowTo | Crowd | Cut | Restart | PROCESS_FAULT):
            self._prompt = False
        match step:
            case Wait():
                await asyncio.sleep(step.seconds)
            case Ask():
                await self._ask(step)
            case CancelIt():
                await self._cancel(step.request)
            case SlowFrom():
                self.network.slow(self._named(step.name), self._named(step.to), step.seconds)
            case SlowTo():
                self.network.slow("", self._named(step.name), step.seconds)
            case Crowd():
                self._bus(step.name).publish_s = step.seconds
            case Say():
                for worker in self._some_workers(step.worker):
                    worker.set_mood(step.mood)
            case Pace():
                for worker in self._some_workers(step.worker):
                    worker.engine.pace = step.pace
            case Generate():
                engine = self.workers[step.worker].engine
                for number in engine.sequences[:1]:
                    engine.say(number, step.what)
            case CrashEngine():
                self.workers[step.worker].crash_engine()
            case Kill():
                self.inspection.excused |= self.workers[step.worker].die()
            case Restart():
                worker = self.workers[step.worker]
                self.inspection.excused |= worker.die()
                await self._start_worker(step.worker, worker.boot + 1, step.silent_s)
            case Drain():
                self.workers[step.worker].drain()
            case Leave():
                self._stops[step.controller].request()
            case Cut():
                bus = self._bus(step.name)
                bus.cut()
                asyncio.get_running_loop().call_later(step.seconds, bus.mend)
            case KillController():
                self._kill_controller(step.controller)
            case StartController():
                self._kill_controller(step.controller)
                self._boots += 1
                self.controllers[step.controller] = self._new_controller(step.controller)
                self._start_controller(step.controller)
            case Stop():
                self._stop(step)
            case KillClient():
                if (listener := self._last.pop(step.request, None)) is not None:
                    self._forget_client(listener)
            case _:
                assert_never(step)

    async def settle(self) -> None:
        """Nothing disturbs it any more: all requests end."""
        self.network.hasten()
        for name, controller in list(self.controllers.items()):
            bus = self._bus(name)
            bus.publish_s = 0
            bus.mend()
            if bus.process.stopped:
                bus.process.resume()
            if bus.process.killed or controller.state == "stopped":
                if all(map(self._is_gone, self.controllers)):
                    await self.do(StartController(name))
        for worker in self.workers.values():
            if worker.alive:
                self._bus(worker.id).mend()
                if worker.bus.process.stopped:
                    worker.bus.process.resume()
                worker.set_mood("willing")
                worker.engine.go_on()
        quiet_s = 0.0
        for _ in range(round(_PATIENCE_S / _LOOK_S)):
            quiet_s = 0.0 if self._unsettled() else quiet_s + _LOOK_S
            if quiet_s > _QUIET_S:  # what is on its way has come
                return
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        for stop in self._stops.values():
            stop.request(in_haste=True)
        alive = [name for name in self._lives if not self._bus(name).process.killed]
        await asyncio.gather(*(self._lives[name] for name in alive))
        for worker in self.workers.values():
            worker.die()

    async def check(self) -> None:
        """What must hold after `settle`, and some time later."""
        wrong = self._unsettled() + self.inspection.faults
        wrong += self.inspection.ends(prompt=self._prompt)
        for id, life in self._lives.items():
            if life.done() and not life.cancelled() and (error := life.exception()) is not None:
                wrong.append(f"{id} died: {error!r}")
        assert not wrong, "\n".join(wrong)
        await asyncio.sleep(_LAST_WORDS_S)
        wrong = self.inspection.books()
        for bus in map(self._bus, (*self.controllers, *self.workers)):
            wrong += [f"a handler of {bus.name} failed: {fault!r}" for fault in bus.faults]
        assert not wrong, "\n".join(wrong)

    def _unsettled(self) -> list[str]:
        self.inspection.excuse(self.network.lost)
        busy = [worker for worker in self.workers.values() if worker.alive and worker.requests]
        return [*self.inspection.unsettled(), *(f"{worker.id} has requests" for worker in busy)]

    # Parts.

    def _new_controller(self, name: str) -> Controller:
        bus = VirtualBus(self.network, name if self._boots == 1 else f"{name}.{self._boots}")
        return Controller(self._settings, bus, ControllerId(name), LogStore("controller", name))

    def _start_controller(self, name: str) -> None:
        controller = self.controllers[name]
        controller._requests._dispatcher._random.seed(0)
        self._stops[name] = StopRequest()
        self._lives[name] = self._bus(name).process.start(self._run(name, controller))

    def _kill_controller(self, name: str) -> None:
        if not self._bus(name).process.killed:
            self._bus(name).die()
            self.inspection.killed.add(name)

    def _is_gone(self, name: str) -> bool:
        return self._bus(name).process.killed or self.controllers[name].state == "stopped"

    def _stop(self, step: Stop) -> None:
        process = self._bus(step.name).process
        if not process.stopped and not process.killed:
            process.stop()
            asyncio.get_running_loop().call_later(step.seconds, process.resume)

    def _forget_client(self, listener: Listener) -> None:
        listener.owed = False
        self.inspection.listeners.pop(listener.inbox, None)
        for subscription in list(self.client._heard):
            if subscription.subject == listener.inbox:
                self.client.forget(subscription)

    async def _ask_again(self, listener: Listener, payload: bytes) -> None:
        """As docs/wire.md says to plain clients."""
        while listener.owed and listener.end is None:
            await asyncio.sleep(0.5)
            limit_s = _SILENCE_S if listener.messages else _UNHEARD_S
            if time.monotonic() - listener.heard_at >= limit_s and listener.owed:
                listener.heard_at = time.monotonic()
                subject = subjects.infer(_CLIENT, SkillName("chat"))
                await self.client.publish(subject, payload, reply=listener.inbox)

    async def _run(self, name: str, controller: Controller) -> None:
        await controller.run(self._stops[name])
        await self._bus(name).close()

    async def _start_worker(self, name: str, boot: int, silent_s: float = 0.0) -> None:
        worker = self.workers[name] = VirtualWorker(self.network, self._settings, name, boot)
        await worker.start()
        if silent_s:
            worker.bus.spawn(_later(silent_s, worker))
        else:
            await worker.announce()

    def _some_workers(self, name: str) -> list[VirtualWorker]:
        return [worker for worker in self.workers.values() if name in ("", worker.id)]

    def _named(self, name: str) -> str:
        """The connection that somebody has now."""
        return self.workers[name].bus.name if name in self.workers else name

    def _bus(self, name: str) -> VirtualBus:
        if name in self.workers:
            return self.workers[name].bus
        bus = self.controllers[name]._bus
        assert isinstance(bus, VirtualBus)
        return bus

    async def _ask(self, step: Ask) -> None:
        body = BODIES[step.request]
        listener = self._last.get(step.request) if step.same_inbox else None
        if listener is None or "request_id" not in body:
            listener = self._last[step.request] = Listener(self.client.new_inbox(), body)
            self.inspection.listeners[listener.inbox] = listener
            await self.client.subscribe(listener.inbox, listener.take)
        listener.owed = True
        listener.heard_at = time.monotonic()
        self.network.preferred = step.via
        subject = subjects.infer(_CLIENT, SkillName("chat"))
        payload = json.dumps(body).encode()
        await self.client.publish(subject, payload, reply=listener.inbox)
        if self._asks_again and "request_id" in body:
            self.client.spawn(self._ask_again(listener, payload))

    async def _cancel(self, request: int) -> None:
        if (request_id := BODIES[request].get("request_id")) is not None:
            payload = json.dumps({"request_id": request_id}).encode()
            await self.client.publish(subjects.request(_CLIENT, "cancel"), payload)


async def _later(seconds: float, worker: VirtualWorker) -> None:
    await asyncio.sleep(seconds)
    await worker.announce()
