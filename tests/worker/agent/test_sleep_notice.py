"""A worker gets ready before its machine sleeps."""

import asyncio
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue

import pytest

from tests.processes import RunningNats
from tests.worker.running_agent import ENDLESS, running_agent
from worker.agent.sleep_notice import (
    HAS_WOKEN,
    STAYS_AWAKE,
    WANTS_TO_SLEEP,
    WILL_SLEEP,
    MacPowerManagement,
    OnMessage,
    SleepHandler,
    this_machine,
)

pytestmark = pytest.mark.anyio


class Machine:
    """Says what it is told to, on a thread of its own as a Mac does, and notes the answers."""

    def __init__(self) -> None:
        self._messages: Queue[int] = Queue()
        self._stopped = threading.Event()
        self.answers: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._said = 0

    def say(self, message: int) -> None:
        self._messages.put(message)

    def listen(self, on_message: OnMessage) -> None:
        while not self._stopped.is_set():
            try:
                message = self._messages.get(timeout=0.02)
            except Empty:
                continue
            self._said += 1
            on_message(message, self._said)

    def allow(self, number: int) -> None:
        self._answer("allow", number)

    def refuse(self, number: int) -> None:
        self._answer("refuse", number)

    def _answer(self, answer: str, number: int) -> None:
        self._loop.call_soon_threadsafe(self.answers.put_nowait, (answer, number))

    def stop(self) -> None:
        self._stopped.set()


class Deaf(Machine):
    def listen(self, on_message: OnMessage) -> None:
        raise OSError("not here")


class Noticed:
    """What a worker would do, in order."""

    def __init__(self, machine: Machine) -> None:
        self.done: list[str] = []
        self.busy = False
        self.woke = asyncio.Event()
        self.notice = SleepHandler(
            machine, busy=lambda: self.busy, before=self._before, after=self._after
        )

    async def _before(self) -> None:
        await asyncio.sleep(0.05)
        self.done.append("ready for sleep")

    async def _after(self) -> None:
        self.done.append("awake")
        self.woke.set()


async def _answer(machine: Machine) -> tuple[str, int]:
    return await asyncio.wait_for(machine.answers.get(), 10)


async def test_an_idle_machine_may_sleep_unless_somebody_waits_for_an_answer() -> None:
    machine = Machine()
    noticed = Noticed(machine)
    task = asyncio.create_task(noticed.notice.run())
    machine.say(WANTS_TO_SLEEP)
    assert await _answer(machine) == ("allow", 1)
    noticed.busy = True
    machine.say(WANTS_TO_SLEEP)
    assert await _answer(machine) == ("refuse", 2)
    assert noticed.done == []
    await _end(task)


@pytest.mark.parametrize("after", [HAS_WOKEN, STAYS_AWAKE])
async def test_sleep_is_allowed_once_the_worker_is_ready_for_it(after: int) -> None:
    machine = Machine()
    noticed = Noticed(machine)
    task = asyncio.create_task(noticed.notice.run())
    machine.say(WILL_SLEEP)
    assert await _answer(machine) == ("allow", 1)
    assert noticed.done == ["ready for sleep"]
    machine.say(0xE0000320)  # of no concern
    machine.say(after)
    await asyncio.wait_for(noticed.woke.wait(), 10)
    assert noticed.done == ["ready for sleep", "awake"]
    await _end(task)


async def test_who_cannot_get_ready_does_not_keep_the_machine_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.agent.sleep_notice._READY_WITHIN_S", 0.05)
    machine = Machine()
    forever = asyncio.Event().wait

    async def before() -> None:
        await forever()

    notice = SleepHandler(machine, busy=lambda: False, before=before, after=before)
    task = asyncio.create_task(notice.run())
    machine.say(WILL_SLEEP)
    assert await _answer(machine) == ("allow", 1)
    await _end(task)


async def test_a_worker_that_fails_at_it_does_not_keep_the_machine_awake() -> None:
    machine = Machine()

    async def before() -> None:
        raise ValueError("no idea")

    notice = SleepHandler(machine, busy=lambda: False, before=before, after=before)
    task = asyncio.create_task(notice.run())
    machine.say(WILL_SLEEP)
    assert await _answer(machine) == ("allow", 1)
    await _end(task)


async def test_where_nothing_is_told_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    await Noticed(Deaf()).notice.run()
    assert "no sleep notifications from this machine: not here" in caplog.text


async def test_a_system_that_lacks_what_macos_has_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.agent.sleep_notice._FRAMEWORKS", "/nowhere/")

    async def nothing() -> None:
        pass

    await SleepHandler(
        MacPowerManagement(), busy=lambda: False, before=nothing, after=nothing
    ).run()
    assert "no sleep notifications" in caplog.text


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.skipif(platform.system() != "Darwin", reason="only macOS tells")
async def test_a_mac_lets_us_listen_and_leave() -> None:
    power = this_machine()
    assert power is not None
    listening = asyncio.create_task(asyncio.to_thread(power.listen, lambda message, number: None))
    await asyncio.sleep(0.2)
    assert not listening.done()
    power.stop()
    await asyncio.wait_for(listening, 10)


# The worker.


async def test_before_sleep_what_runs_goes_elsewhere_and_after_it_new_work_is_taken(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        stream = await agent.start(max_tokens=900, logit_bias=ENDLESS)
        await stream.started()
        await agent.agent.fall_asleep()
        assert (await stream.requeued()).code == "draining"
        await agent.until_reported(_is("starting"))
        (result,) = (await agent.send(agent.dispatch())).results
        assert result.refusal is not None
        assert (result.refusal.code, result.refusal.retry_after_ms) == ("draining", 1000)
        await agent.agent.wake_up()
        await agent.until_reported(_is("ready"))
        again = await agent.start(max_tokens=5)
        assert (await again.done()).usage.completion_tokens == 5


async def test_a_sleeping_worker_that_is_told_to_end_does(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        await agent.agent.fall_asleep()
        agent.stop.request()
        await agent.life
        await agent.wire.wait(lambda: agent.reports()[-1][0] == "left")


def _is(state: str) -> Callable[..., bool]:
    return lambda report: bool(report.state == state)
