"""Workers that ended are found out by the server's word that nobody listens there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

import pytest

from controller.fleet.link_monitor import LinkMonitor
from controller.fleet.registry import NodeRegistry
from controller.fleet.worker_exit_probes import Boot, WorkerExitProbes
from shared import subjects
from shared.bus import Bus, IncomingMessage, Subscription
from shared.change_notifier import ChangeNotifier
from shared.ids import BootId, WorkerId
from shared.messages.events import WorkerEvent
from shared.settings.nats import NatsSettings
from tests.access.roles import connect_as
from tests.controller.values import report

pytestmark = pytest.mark.anyio

BOOT = BootId("b1")
NAMES = ("w1", "w2", "w3", "w4")
_INTERVAL_S = 0.02


@dataclass(slots=True)
class ToldLink:
    """Of which only this is asked."""

    stalled: bool = False
    stable_s: float = 60.0


class Probed:
    """Workers that are all known and busy, of which those listen that shall."""

    def __init__(self, bus: Bus, workers: Bus) -> None:
        self.link = ToldLink()
        self.busy: set[Boot] = {(WorkerId(name), BOOT) for name in NAMES}
        self.gone: asyncio.Queue[Boot] = asyncio.Queue()
        self.probes: list[str] = []
        self._changes = ChangeNotifier()
        self._workers = workers
        self._alive: dict[str, Subscription] = {}
        registry = NodeRegistry(60)
        for name in NAMES:
            registry.on_worker_event(WorkerEvent(type="joined", worker=report(name)), 0.0)
        self.registry = registry
        self.probing = WorkerExitProbes(
            bus,
            cast(LinkMonitor, self.link),
            known=lambda: {(view.id, view.report.boot_id) for view in registry.workers},
            busy=lambda: self.busy,
            on_gone=self._on_gone,
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.probing.probe()
            await asyncio.sleep(_INTERVAL_S)

    def _on_gone(self, boot: Boot) -> None:
        assert self.registry.remove(*boot, 0.0)
        self.gone.put_nowait(boot)

    async def begin(self, *names: str) -> None:
        """They listen."""
        for name in names:
            subject = subjects.worker_alive(WorkerId(name), BOOT)
            self._alive[name] = await self._workers.subscribe(subject, self._answer)
        await self._workers.flush()

    async def end(self, *names: str) -> None:
        for name in names:
            await self._alive.pop(name).unsubscribe()
        await self._workers.flush()

    async def next_gone(self) -> str:
        return (await asyncio.wait_for(self.gone.get(), 10))[0]

    async def rounds(self, count: int = 5) -> None:
        """So many more probes come to a worker that listens."""
        wanted = len(self.probes) + count * len(self._alive)
        await self.until(lambda: len(self.probes) >= wanted)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            await self._changes.wait_until(condition)

    async def _answer(self, message: IncomingMessage) -> None:
        self.probes.append(message.subject)
        self._changes.notify()
        await self._workers.publish(message.reply, b"")


@pytest.fixture
async def probed(nats_settings: NatsSettings, bus: Bus) -> AsyncIterator[Probed]:
    own = await connect_as("controller", "c-1", nats_settings.servers[0])
    probed = Probed(own, bus)
    await probed.begin(*NAMES)
    await probed.probing.open()
    running = asyncio.create_task(probed.run())
    yield probed
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await own.close()


async def test_who_listens_is_there(probed: Probed) -> None:
    await probed.rounds()
    assert probed.gone.empty() and len(probed.registry.workers) == 4


async def test_who_does_not_listen_is_gone_once(probed: Probed) -> None:
    await probed.rounds(1)
    await probed.end("w2")
    assert await asyncio.wait_for(probed.gone.get(), 10) == ("w2", BOOT)
    assert probed.registry.worker(WorkerId("w2")) is None
    await probed.rounds()
    assert probed.gone.empty() and len(probed.registry.workers) == 3


async def test_who_has_nothing_to_do_is_not_asked(probed: Probed) -> None:
    probed.busy = {(WorkerId("w1"), BOOT)}
    await probed.rounds(1)
    probed.probes.clear()
    await probed.end("w2")
    await probed.until(lambda: len(probed.probes) >= 5)
    assert {subject.split(".")[2] for subject in probed.probes} == {"w1"}
    assert probed.gone.empty()


async def test_another_boot_does_not_answer_for_the_one_that_was_busy(probed: Probed) -> None:
    await probed.rounds(1)
    event = WorkerEvent(type="joined", worker=report("w1", boot="b2"))
    probed.registry.on_worker_event(event, 0.0)
    await probed.end("w1")
    await probed.rounds()
    assert probed.gone.empty(), "of the old boot the registry has told already"


@pytest.mark.parametrize("ended", [NAMES[:3], NAMES])
async def test_when_most_are_missing_a_while_is_given_them_to_come_back(
    probed: Probed, ended: tuple[str, ...]
) -> None:
    await probed.rounds(1)
    await probed.end(*ended)
    await asyncio.sleep(0.3)
    assert probed.gone.empty()
    await probed.begin(*ended[1:])
    assert await probed.next_gone() == ended[0]
    await probed.rounds()
    assert probed.gone.empty() and len(probed.registry.workers) == 3


@pytest.mark.parametrize("stalled", [False, True])
async def test_while_our_own_link_is_new_or_does_not_work_nobody_is_gone_at_once(
    probed: Probed, stalled: bool
) -> None:
    probed.link.stalled, probed.link.stable_s = stalled, 0.0
    await probed.rounds(1)
    await probed.end("w4")
    await probed.rounds(3)
    assert probed.gone.empty()
    probed.link.stalled, probed.link.stable_s = False, 60.0
    assert await probed.next_gone() == "w4"


async def test_many_are_asked_in_turn(probed: Probed) -> None:
    others = [(WorkerId(f"other-{number}"), BOOT) for number in range(300)]
    for worker, _ in others:
        event = WorkerEvent(type="joined", worker=report(worker))
        probed.registry.on_worker_event(event, 0.0)
    await probed.begin(*(worker for worker, _ in others))
    probed.busy |= set(others)
    await probed.until(lambda: len(set(probed.probes)) == 304)
    await probed.end("other-7")
    assert await probed.next_gone() == "other-7"
