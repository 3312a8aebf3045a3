"""A whole cluster in one process and in simulated time: controllers, workers, clients.

Nothing in it is simulated but time, NATS, and what engines generate.
"""

import asyncio
import contextlib
import itertools
import json
import math
import random
import time
from typing import Any, assert_never

from controller.service import Controller
from shared import subjects
from shared.client import Cluster
from shared.codec import decode, encode
from shared.errors import BusError, DecodeError
from shared.ids import ControllerId, SkillName
from shared.logs import BusLogHandler
from shared.messages.controller_report import LeaseRecord
from shared.messages.events import ControllerEvent, WorkerEvent
from shared.messages.request import InferenceRequest
from shared.service import StopSignal
from shared.settings import ClusterSettings
from tests.simulation.bus import SimulatedBus
from tests.simulation.clients import CLIENT, Listener, PlainListener, stream
from tests.simulation.network import SERVERS, Network
from tests.simulation.record_store import JetStream, RecordStore
from tests.simulation.script import (
    CONTROLLERS,
    REQUESTS,
    WORKERS,
    Ask,
    CancelIt,
    CrashEngine,
    Crowd,
    Cut,
    Drain,
    Forge,
    ForgeRecord,
    Generate,
    Kill,
    KillClient,
    KillServer,
    Leave,
    Lie,
    Pace,
    Say,
    SlowFrom,
    SlowTo,
    Start,
    Step,
    Stop,
    StopJetStream,
    Wait,
)
from tests.simulation.worker import SimulatedWorker

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
_PLACES = 3 * len(WORKERS)
"""One request decodes at each worker, two wait there."""
_STARTED_S = 0.1
_LOOK_S = 0.25
_QUIET_S = 1.3
_REPORTED_S = 4.2
_UNHEARD_S, _SILENCE_S = 1.0, 3.0
_CLAIMED_S = 10.0
_SERVED_S = 10.0
_PATIENCE_S = 40.0
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

_GIVEN_UP = ("stream_silent", "no_controller", "disconnected")
_HEALED_S = 6.0
"""So long after the last disturbance every client has heard of its request."""

_FAULTS = frozenset({"internal_error", "stream_broken", "slow_consumer", "decode"})
"""Ends that must not be, whatever happens."""


class SimulatedCluster:
    """Made in a `SimulatedLoop`."""

    def __init__(self, settings: ClusterSettings = SETTINGS) -> None:
        self.network = Network()
        self.jetstream = JetStream()
        self.faults: list[str] = []
        self.listeners: list[Listener] = []
        self._settings = settings
        self._last: dict[int, Listener] = {}
        self._buses: dict[str, SimulatedBus] = {}
        self._boots = 0
        self._clients = 0
        self.controllers: dict[str, Controller] = {}
        self.workers: dict[str, SimulatedWorker] = {}
        self._stops: dict[str, StopSignal] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._unsure: dict[str, int] = {}
        self._leader_of: dict[int, str] = {}
        self._settled_at = 0.0
        self._disturbed = False
        self._end_sent_at: dict[str, float] = {}  # by request
        self._turns_unheard = False  # one may run, unheard, while the next one does
        self._turns_lost = False  # with their worker; those who ask plainly may swap them then
        self._client()

    async def start(self) -> None:
        """All know each other afterwards."""
        self.network.on_publish.append(self._watch)
        for name in CONTROLLERS:
            self._start_controller(name)
        await asyncio.sleep(_STARTED_S)
        for name in WORKERS:
            await self._start_worker(name)
        await asyncio.sleep(_STARTED_S)

    async def do(self, step: Step) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(step, Wait | Ask | CancelIt | Pace | Generate):
            self._disturbed = True
        if isinstance(step, KillServer | KillClient | SlowFrom | SlowTo) or (
            isinstance(step, Stop) and step.name not in CONTROLLERS
        ):
            self._turns_unheard = True
        if isinstance(step, Kill | Start | Cut) and step.name in WORKERS:
            self._turns_lost = True
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
                self._buses[step.name].publish_s = step.seconds
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
            case Drain():
                self.workers[step.worker].drain()
            case Leave():
                self._stops[step.controller].request()
                # What no worker has when the last one leaves is known to its client only.
                self._turns_lost |= all(
                    self._is_gone(name) or self._stops[name].requested for name in self.controllers
                )
            case Kill():
                self._kill(step.name)
            case Start():
                self._kill(step.name)
                if step.name in CONTROLLERS:
                    self._start_controller(step.name)
                else:
                    await self._start_worker(step.name, step.silent_s)
            case Stop():
                self._stop(self._buses[step.name], step.seconds)
            case Cut():
                self._cut(self._buses[step.name], step.seconds)
            case KillServer():
                others = [server for server in SERVERS if server != step.server]
                for bus in self._buses.values():
                    if bus.server == step.server:
                        self._cut(bus, step.seconds)
                        bus.server = others[len(bus.name) % 2]
            case Forge():
                await self._forge(step)
            case Lie():
                self.workers[step.worker].claim.lie = step.term
            case ForgeRecord():
                self._forge_record(step.term)
            case StopJetStream():
                self._stop_jetstream(step)
                loop.call_later(step.seconds, self._mend_jetstream)
            case KillClient():
                self._kill_client(step.request)
            case _:
                assert_never(step)

    async def settle(self) -> None:
        """Nothing disturbs it any more: all requests end."""
        self._settled_at = time.monotonic()
        self.network.hasten()
        self._mend_jetstream()
        for bus in self._buses.values():
            bus.publish_s = 0
            bus.mend()
            if bus.process.stopped:
                bus.process.resume()
        for worker in self.workers.values():
            if worker.alive:
                worker.claim.lie = None
                worker.set_mood("willing")
                worker.engine.go_on()
        if all(self._is_gone(name) or self._stops[name].requested for name in CONTROLLERS):
            self._start_controller("c-3")
        await self._until_settled()

    async def _until_settled(self) -> None:
        quiet_s = 0.0
        for _ in range(round(_PATIENCE_S / _LOOK_S)):
            quiet_s = 0.0 if self._unsettled() else quiet_s + _LOOK_S
            if quiet_s > _QUIET_S:  # what is on its way has come
                return
            await asyncio.sleep(_LOOK_S)

    async def check(self) -> list[str]:
        """What is not as it must be after `settle`."""
        await self._ask_once_more()
        await self._until_settled()  # a client without a request id may have asked again meanwhile
        wrong = [*self._unsettled(), *self.faults, *self._wrong_ends()]
        for name, life in self._lives.items():
            if life.done() and not life.cancelled() and (error := life.exception()) is not None:
                wrong.append(f"{name} died: {error!r}")
        if self._books():  # the next reports of workers put them right
            await asyncio.sleep(_REPORTED_S)
            wrong += self._books()
        for bus in self._buses.values():
            wrong += [f"a handler of {bus.name} failed: {fault!r}" for fault in bus.faults]
        return wrong

    async def _ask_once_more(self) -> None:
        """One more request is served, if there is a worker that can."""
        for _ in range(round(_CLAIMED_S / _LOOK_S)):
            if not self._unclaimed() and self._are_known():
                break
            await asyncio.sleep(_LOOK_S)
        wrong = self._unclaimed()
        if wrong or not self._able:
            self.faults += wrong
            return
        last = Listener({"request_id": "last", "prompt": "x"}, "the last stream")
        self.listeners.append(last)
        self._buses["client"].spawn(stream(self.cluster, last))
        for _ in range(round(_SERVED_S / _LOOK_S)):
            if last.end is not None:
                break
            await asyncio.sleep(_LOOK_S)
        if last.end != "done":
            self.faults.append(f"not served in the end: {last}")

    @property
    def _able(self) -> list[SimulatedWorker]:
        """The workers that could serve a request."""
        return [one for one in self.workers.values() if one.alive and one.state == "ready"]

    def _are_known(self) -> bool:
        """Whether leaders have heard that these workers are ready, with memory and their models."""
        views = [
            self.controllers[name]._registry.worker(one.id)
            for name in self._leaders
            for one in self._able
        ]
        reports = [view.report if view is not None else None for view in views]
        return all(
            report is not None
            and (report.state, report.memory.pressure) == ("ready", "none")
            and all(model.state != "failed" for model in report.models)
            for report in reports
        )

    def _unclaimed(self) -> list[str]:
        """Which workers the leader has not claimed, that it must have: all if the record was never
        lost, else half of them."""
        wrong, able = [], self._able
        for name in self._leaders:
            leader = self.controllers[name]
            views = {view.id: view for view in leader._registry.workers}
            claimed = [one for one in able if one.id in views and views[one.id].claimed]
            told = [view.id for view in views.values() if view.refused_term is not None]
            is_lost = self.jetstream.is_replaced
            if len(claimed) < len(able) and not (is_lost and 2 * len(claimed) >= len(able)):
                wrong.append(f"not claimed by {name}: {len(claimed)} of {len(able)}, {told}")
        return wrong

    # What must hold.

    def _unsettled(self) -> list[str]:
        wrong = [
            f"no end: {one}"
            for one in self.listeners
            if one.owed and one.end is None
            # Whose request has no id cannot ask for what was lost.
            if not (self._disturbed and "request_id" not in one.body)
        ]
        if len(self._leaders) != 1:
            wrong.append(f"{len(self._leaders)} controllers lead")
        if self.jetstream.there and self._recorded_leader not in self._leaders:
            wrong.append(f"the record names another leader: {self._recorded_leader}")
        workers = self.workers.values()
        wrong += [f"{one.id} has requests" for one in workers if one.alive and one.requests]
        for name, controller in self.controllers.items():
            leader = controller._leader
            if not self._is_gone(name) and leader is not None:
                wrong += [
                    f"{name} has {each.request_id} {each.state} {each.attempt}@{each.worker}"
                    for each in leader.machine._store
                ]
        return wrong

    @property
    def _recorded_leader(self) -> str | None:
        try:
            return decode(LeaseRecord, self.jetstream.value).controller
        except DecodeError:
            return None

    def _was_crowded(self, one: Listener) -> bool:
        """Whether others could have all places of all workers when it ended."""
        asked_at, ended_at = one.asked_at, one.ended_at or 0.0
        others = {
            other.request_id: InferenceRequest.model_validate(other.body).choices
            for other in self.listeners
            if other.asked_at <= ended_at and (other.ended_at or ended_at) >= asked_at
        }
        others.pop(one.request_id, None)
        return sum(others.values()) >= _PLACES

    def _wrong_ends(self) -> list[str]:
        wrong = []
        for one in self.listeners:
            wrong += [f"{each}: {one}" for each in one.wrong]
            if one.end in _FAULTS:
                wrong.append(f"a fault of the cluster: {one}")
            if one.end == "request_id_conflict" and one.request_id not in ("r0", "plain-r0"):
                wrong.append(f"taken for another request: {one}")
            if one.end in _GIVEN_UP and (one.ended_at or 0) > self._settled_at + _HEALED_S:
                wrong.append(f"its client gave up: {one}")
            if one.end == "deadline_exceeded" and not one.hurried:
                wrong.append(f"ended before its time: {one}")
            if not self._disturbed and one.end not in (
                "done",
                "request_id_conflict",
                "request_failed",
            ):
                is_late = one.hurried and one.end == "deadline_exceeded"
                if not is_late and not (one.end == "queue_full" and self._was_crowded(one)):
                    wrong.append(f"failed without a reason: {one}")
            if isinstance(one, PlainListener) and len(one.terminals) > 1 and not self._disturbed:
                wrong.append(f"answered twice: {one}")
        return wrong if self._turns_unheard else wrong + self._wrong_turns()

    def _wrong_turns(self) -> list[str]:
        """One turn of a session is served at a time; who comes later may hear it once more. A turn
        has ended when its end was sent: its client, who was cut off, may hear it later."""
        heard: dict[str | None, tuple[float, float]] = {}
        for one in self.listeners:
            if self._turns_lost and isinstance(one, PlainListener):
                continue
            if "session_id" in one.body and one.began_at is not None and one.ended_at is not None:
                began_at, ended_at = heard.get(one.request_id, (math.inf, math.inf))
                sent_at = self._end_sent_at.get(one.request_id or "", math.inf)
                ended_at = min(ended_at, one.ended_at, sent_at)
                heard[one.request_id] = min(began_at, one.began_at, ended_at), ended_at
        turns = sorted((*times, turn) for turn, times in heard.items())
        return [
            f"turns at once: {one} and {following}"
            for (_, ended_at, one), (began_at, _, following) in itertools.pairwise(turns)
            if began_at < ended_at
        ]

    def _note_end_of_turn(self, subject: str, payload: bytes) -> None:
        if not subject.startswith("_INBOX.client"):
            return
        if b'"done":true' in payload or b'"error":{' in payload:
            request_id = json.loads(payload).get("request_id", "")
            self._end_sent_at.setdefault(request_id, time.monotonic())

    def _books(self) -> list[str]:
        """What controllers still count after the last end."""
        wrong = []
        for name, controller in self.controllers.items():
            if self._is_gone(name) or controller._leader is None:
                continue
            if unexpected := controller._metrics._without_action._values:
                wrong.append(f"triggers without an action at {name}: {dict(unexpected)}")
            for view in controller._registry.workers:
                if not self.workers[view.id].alive:
                    continue
                books = view.load, view.unreported, view._offered, view._accepted
                if (*books, view.choices, view.unreported_choices) != (0, 0, {}, {}, 0, 0):
                    wrong.append(f"{name} counts at {view.id}: {books}")
                if view.breaker is not None and view.breaker._trials:
                    wrong.append(f"{name} tries {view.id}: {view.breaker._trials}")
        return wrong

    @property
    def _leaders(self) -> list[str]:
        return [
            name
            for name, controller in self.controllers.items()
            if not self._is_gone(name) and controller._leadership.leads
        ]

    def _watch(self, connection: str, subject: str, payload: bytes) -> None:
        """Whoever may have been replaced says nothing to clients and workers."""
        self._note_end_of_turn(subject, payload)
        name = connection.partition(".")[0]
        if name not in self.controllers or self.controllers[name]._bus is not self._buses[name]:
            return
        if self.controllers[name]._leadership.leads:
            self._note_leader(connection, self.controllers[name]._leadership.term)
        said = subject.startswith(("_INBOX.client", "mlx.worker."))
        said = said and not subject.endswith((".alive", ".control.kept"))  # standbys ask, too
        if said and self._is_replaced(name):
            self.faults.append(f"{name} says something on {subject} after it was replaced")

    def _note_leader(self, boot: str, term: int) -> None:
        first = self._leader_of.setdefault(term, boot)
        if first != boot and not self.jetstream.is_replaced:  # else workers take but one for it
            self.faults.append(f"two lead in a term: {first} and {boot} in {term}")

    def _is_replaced(self, name: str) -> bool:
        """It stood still or was cut off, and another one leads since."""
        if name not in self._unsure or not self.jetstream.value or self.jetstream.is_replaced:
            return False
        try:
            record = decode(LeaseRecord, self.jetstream.value)
        except DecodeError:
            return False
        return record.controller != name and record.term > self._unsure[name]

    # Processes.

    def _is_gone(self, name: str) -> bool:
        if name not in self.controllers:
            return True
        return self._buses[name].process.killed or self.controllers[name].state == "stopped"

    def _new_bus(self, name: str) -> SimulatedBus:
        self._boots += 1
        server = SERVERS[self._boots % len(SERVERS)]
        bus = SimulatedBus(self.network, f"{name}.{self._boots}", server=server)
        self._buses[name] = bus
        return bus

    def _client(self) -> SimulatedBus:
        bus = SimulatedBus(self.network, "client", server=SERVERS[0])
        self._buses["client"] = bus
        self.cluster = Cluster(bus, CLIENT)
        return bus

    def _start_controller(self, name: str) -> None:
        bus = self._new_bus(name)
        draw = random.Random(name).random
        controller = self.controllers[name] = Controller(
            self._settings,
            bus,
            ControllerId(name),
            BusLogHandler("controller", name),
            store=RecordStore(self.jetstream, bus),
            random=draw,
        )
        self._stops[name] = StopSignal()
        self._unsure.pop(name, None)
        self._lives[name] = bus.process.start(_life(controller, self._stops[name], bus))

    async def _start_worker(self, name: str, silent_s: float = 0.0) -> None:
        self._boots += 1
        server = SERVERS[self._boots % len(SERVERS)]
        worker = SimulatedWorker(self.network, self._settings, name, self._boots, server)
        self.workers[name], self._buses[name] = worker, worker.bus
        await worker.start()
        if silent_s:
            worker.bus.spawn(_later(silent_s, worker))
        else:
            await worker.announce()

    def _kill(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].die()
        else:
            self._buses[name].die()

    def _stop(self, bus: SimulatedBus, seconds: float) -> None:
        process = bus.process
        if not process.stopped and not process.killed:
            process.stop()
            self._doubt(bus, seconds)
            asyncio.get_running_loop().call_later(seconds, process.resume)

    def _cut(self, bus: SimulatedBus, seconds: float) -> None:
        if bus.connected:
            bus.cut()
            self._doubt(bus, seconds)
            asyncio.get_running_loop().call_later(seconds, bus.mend)

    def _doubt(self, bus: SimulatedBus, seconds: float) -> None:
        name = bus.name.partition(".")[0]
        if name in self.controllers and seconds > 1:
            self._unsure[name] = self.controllers[name]._leadership.term

    async def _forge(self, step: Forge) -> None:
        """Publish the report of a process, with that term in it."""
        event: ControllerEvent | WorkerEvent
        if step.name in self.workers:
            worker = self.workers[step.name]
            subject = subjects.worker_event(worker.id)
            event = WorkerEvent(type="heartbeat", worker=worker.report())
            body = json.loads(encode(event))
            body["worker"]["term"] = step.term
        else:
            controller = self.controllers[step.name]
            subject = subjects.controller_event(controller.id)
            event = ControllerEvent(type="heartbeat", controller=controller.report())
            body = json.loads(encode(event))
            body["controller"] |= {"term": step.term, "leader": step.leads}
        with contextlib.suppress(BusError):
            self._buses[step.name].send(subject, json.dumps(body).encode())

    def _forge_record(self, term: int) -> None:
        record = {"controller": "c-9", "boot_id": "b", "term": term}
        self.jetstream.write(json.dumps(record).encode(), self.jetstream.sequence)
        self.jetstream.is_replaced = True
        self._turns_unheard = True

    def _stop_jetstream(self, step: StopJetStream) -> None:
        match step.how:
            case "silent":
                self.jetstream.there = False
            case "mute":
                self.jetstream.loses_answers = True
            case "lost":
                self.jetstream.lose()
                self._turns_unheard = True  # at a worker that the next leader cannot claim
            case _:
                pass

    def _mend_jetstream(self) -> None:
        self.jetstream.there, self.jetstream.loses_answers = True, False

    def _some_workers(self, name: str) -> list[SimulatedWorker]:
        return [worker for worker in self.workers.values() if name in ("", worker.id)]

    def _named(self, name: str) -> str:
        """The connection that somebody has now."""
        return self._buses[name].name if name else ""

    # Clients.

    async def _ask(self, step: Ask) -> None:
        body = BODIES[step.request]
        client = self._buses["client"]
        if not step.plainly and body.get("stream", True):  # the library always streams
            if "request_id" in body and self._listens(body["request_id"]):
                return  # the library has one stream of an id
            self._clients += 1
            listener = Listener(body, f"stream {self._clients}")
            self.listeners.append(listener)
            self._last[step.request] = listener
            client.spawn(stream(self.cluster, listener))
            return
        if "request_id" in body:  # the library goes on from what it has; others cannot
            body = {**body, "request_id": f"plain-{body['request_id']}"}
        known = self._last.get(step.request) if step.same_inbox else None
        if not isinstance(known, PlainListener) or "request_id" not in body:
            known = PlainListener(body, client.new_inbox())
            self.listeners.append(known)
            self._last[step.request] = known
            await client.subscribe(known.inbox, known.take)
        known.owed, known.heard_at = True, time.monotonic()
        payload = json.dumps(body).encode()
        client.spawn(self._publish(known, payload))

    def _listens(self, request_id: str) -> bool:
        return any(
            one.request_id == request_id and one.end is None and not isinstance(one, PlainListener)
            for one in self.listeners
        )

    async def _publish(self, listener: PlainListener, payload: bytes) -> None:
        """As docs/wire.md says to clients without a library."""
        client = self._buses["client"]
        subject = subjects.infer(CLIENT, SkillName("chat"))
        await client.publish(subject, payload, reply=listener.inbox)
        anonymous = "request_id" not in listener.body
        while listener.owed and listener.end is None:
            await asyncio.sleep(0.5)
            limit_s = _SILENCE_S if listener.log else _UNHEARD_S
            if time.monotonic() - listener.heard_at >= limit_s:
                if anonymous and not listener.log:
                    listener.owed = False  # it may have been lost with who had it
                    return
                listener.heard_at = time.monotonic()
                listener.forget_attempts()
                if not anonymous:
                    await client.publish(subject, payload, reply=listener.inbox)

    async def _cancel(self, request: int) -> None:
        if (request_id := BODIES[request].get("request_id")) is not None:
            for each in (request_id, f"plain-{request_id}"):
                payload = json.dumps({"request_id": each}).encode()
                await self._buses["client"].publish(subjects.request(CLIENT, "cancel"), payload)

    def _kill_client(self, request: int) -> None:
        listener = self._last.pop(request, None)
        if not isinstance(listener, PlainListener):
            return
        listener.owed = False
        client = self._buses["client"]
        for subscription in list(client._heard):
            if subscription.subject == listener.inbox:
                client.forget(subscription)


async def _life(controller: Controller, stop: StopSignal, bus: SimulatedBus) -> None:
    await controller.run(stop)
    await bus.close()


async def _later(seconds: float, worker: SimulatedWorker) -> None:
    await asyncio.sleep(seconds)
    await worker.announce()
