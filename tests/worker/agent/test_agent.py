"""A worker's life: it joins, loads, loses engines and gets them back, drains and leaves."""

import shutil
import signal
from pathlib import Path

import psutil
import pytest

from shared import subjects
from shared.bus import Bus
from shared.errors import NoResponders
from shared.ids import BootId, ModelId
from shared.messages.control import DrainWorker, LoadModel, UnloadModel
from shared.messages.request_events import AttemptFailed, RequestEvent, TokensEmitted
from shared.messages.worker_report import WorkerReport
from tests.processes import NatsProcess, RunningNats
from tests.tiers import examples
from tests.worker.running_agent import ENDLESS, LIMIT_S, RunningAgent, running_agent

pytestmark = pytest.mark.anyio

_LONG = 900
_QUICK = {"restart_delay_ms": 10}


def _requeued(agent: RunningAgent) -> list[str]:
    """The requests that the leader shall take elsewhere, in order."""
    failed = [event for event in agent.wire.events() if isinstance(event, AttemptFailed)]
    return [event.request_id for event in failed if not event.terminal_sent]


def _kill_engine(agent: RunningAgent, index: int = 0) -> int:
    pid = agent.agent.report().engines[index].pid
    assert pid is not None
    psutil.Process(pid).send_signal(signal.SIGKILL)
    return pid


def _is_tokens(event: RequestEvent) -> bool:
    return isinstance(event, TokensEmitted)


def _model(report: WorkerReport, model: str) -> str:
    return next(status.state for status in report.models if status.id == model)


# Joining, and what is told.


async def test_a_worker_joins_as_it_starts_and_then_is_warming_and_ready(
    agent: RunningAgent,
) -> None:
    events = agent.reports()
    assert [kind for kind, _ in events].count("joined") == 1
    kind, first = events[0]
    assert (kind, first.state, first.id) == ("joined", "starting", agent.id)
    states = [report.state for _, report in events]
    assert list(dict.fromkeys(states)) == ["starting", "warming", "ready"]
    order = ["starting", "warming", "ready"]
    assert states == sorted(states, key=order.index)


async def test_a_worker_that_registers_when_complete_is_not_heard_of_before(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    warming = {"register_when": "complete"}
    async with running_agent(nats_server.url, {"tiny": tiny_model}, pre_warming=warming) as late:
        kind, first = late.reports()[0]
        assert (kind, first.state, _model(first, "tiny")) == ("joined", "ready", "warm")


async def test_health_tells_state_models_engines_and_hardware(agent: RunningAgent) -> None:
    health = await agent.health()
    assert health.live and health.ready
    report = health.worker
    assert (report.id, report.boot_id, report.state) == (agent.id, agent.agent.boot_id, "ready")
    (model,) = report.models
    assert (model.id, model.state, model.error) == ("tiny", "warm", None)
    (engine,) = report.engines
    assert engine.state == "running" and engine.pid is not None
    assert psutil.Process(engine.pid).is_running()
    assert report.memory_bytes > engine.memory_bytes > 0
    assert report.hardware.accelerator in ("cpu", "metal", "cuda")
    assert report.hardware.cores >= 1


async def test_a_boot_answers_its_own_probe_and_no_other_boots(agent: RunningAgent) -> None:
    bus = agent.wire.bus
    own = subjects.worker_alive(agent.id, agent.agent.boot_id)
    await bus.request(own, b"", timeout_s=LIMIT_S)
    with pytest.raises(NoResponders):
        await bus.request(subjects.worker_alive(agent.id, BootId("old")), b"", timeout_s=LIMIT_S)


async def test_after_a_request_the_worker_tells_how_fast_it_serves_its_model(
    agent: RunningAgent,
) -> None:
    await (await agent.start(prompt="How fast?", max_tokens=40)).done()

    def has_learned(report: WorkerReport) -> bool:
        speed = report.models[0].speed
        return report.active_requests == 0 and min(speed.step_ms, speed.bytes_per_token) > 0

    await agent.until_reported(has_learned)
    report = next(report for _, report in reversed(agent.reports()) if has_learned(report))
    speed = report.models[0].speed
    assert speed.prefill_tokens_per_s > 0 and speed.load_ms > 0
    assert 1 <= speed.rows <= report.max_batch_size
    assert speed.bytes_per_token == 1, "the tiny model's tokens are bytes"
    assert 0 < speed.prefill_share <= 1
    assert 0 < speed.answer_tokens <= _LONG
    assert report.prefill_ms == 0, "no prompt is left"
    assert report.dispatches_per_message == 64


async def test_finished_and_failed_requests_are_counted(agent: RunningAgent) -> None:
    before = (await agent.health()).worker
    await (await agent.start()).done()
    await (await agent.start(prompt=[10**6])).failed()
    await (await agent.start(max_tokens=_LONG, logit_bias=ENDLESS, timeout_ms=300)).failed()
    after = (await agent.health()).worker
    assert after.completed_requests == before.completed_requests + 1
    assert after.rejected_requests == before.rejected_requests + 1, "what it asks cannot be"
    assert after.failed_requests == before.failed_requests + 1, "its time passed"
    assert (after.active_requests, after.queued_requests) == (0, 0)


# Control.


async def test_loading_what_is_loaded_is_fine_and_what_was_unloaded_is_loaded_again(
    agent: RunningAgent,
) -> None:
    tiny = ModelId("tiny")
    assert (await agent.control("load", LoadModel(model=tiny))).ok
    unloaded = await agent.control("unload", UnloadModel(model=tiny))
    assert [model.state for model in unloaded.models] == ["available"]
    await (await agent.start()).done()  # its request loads it
    listed = await agent.control("models", b"{}")
    assert [(model.id, model.state) for model in listed.models] == [("tiny", "warm")]
    await (await agent.start()).done()


# Models.


async def test_a_broken_model_fails_its_requests_with_its_path_until_it_is_repaired(
    nats_server: RunningNats, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"broken")
    broken = ModelId("broken")
    async with running_agent(nats_server.url, {"tiny": tiny_model, "broken": folder}) as agent:
        failed = await (await agent.start(model=broken)).requeued()
        assert failed.code == "model_unavailable"
        assert str(folder) in failed.message
        assert await agent.refusal_code(model=broken) == "model_unavailable"
        await (await agent.start()).done()

        shutil.copy(tiny_model / "model.safetensors", weights)
        assert (await agent.control("load", LoadModel(model=broken))).ok
        await (await agent.start(model=broken)).done()


# Engines that die.


async def test_of_a_killed_engine_each_stream_goes_back_once_and_the_worker_serves_again(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        engines=_QUICK,
        continuous_batching={"max_batch_size": 4},
    ) as agent:
        whole = await agent.start()
        await whole.done()
        streams = [await agent.start(max_tokens=_LONG, stream=n != 3) for n in range(4)]
        waiting = await agent.start()
        started = {stream.dispatch.request_id for stream in streams}
        await agent.wire.wait(
            lambda: started <= {e.request_id for e in agent.wire.events() if _is_tokens(e)}
        )
        killed = _kill_engine(agent)
        for stream in streams:
            failed = await stream.requeued()
            assert (failed.code, failed.suspect) == ("engine_crashed", True), "all had begun"
            assert "signal 9" in failed.message

        await waiting.done()
        assert waiting.text() == whole.text(), "what waited is served by the next engine"
        again = await agent.start()
        await again.done()
        assert again.text() == whole.text()
        await agent.settle()
        assert [len(stream.ends) for stream in streams] == [0] * 4, "the leader goes on with them"
        lost = [e for e in agent.wire.events() if isinstance(e, AttemptFailed)]
        assert len(lost) == 4
        assert {event.request_id for event in lost} == {s.dispatch.request_id for s in streams}
        (engine,) = (await agent.health()).worker.engines
        assert engine.restarts == 1 and engine.pid != killed


async def test_of_two_engines_only_the_dead_ones_streams_go_back(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(
        nats_server.url, {"tiny": tiny_model}, engines={"count": 2, **_QUICK}
    ) as agent:
        await agent.until_reported(
            lambda report: [engine.state for engine in report.engines] == ["running"] * 2
        )
        warm = agent.agent._scheduler.models.catalogue[ModelId("tiny")]
        await agent.wire.wait(lambda: warm.engines == {0, 1})
        streams = [await agent.start(prompt=text, max_tokens=_LONG) for text in ("Hello", "Bye")]
        for stream in streams:
            await stream.started()
        _kill_engine(agent, 0)
        await agent.wire.wait(lambda: bool(_requeued(agent)))
        (dead,) = [s for s in streams if s.dispatch.request_id in _requeued(agent)]
        (alive,) = [s for s in streams if s is not dead]
        assert (await dead.requeued()).code == "engine_crashed"
        done = await alive.done()
        assert done.usage.completion_tokens == _LONG


async def test_past_the_restart_limit_a_worker_is_unhealthy_until_an_engine_runs_again(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        engines={"max_restarts": 0, **_QUICK},
        controller={"circuit_breaker": {"recovery_timeout_ms": 500}},
    ) as agent:
        _kill_engine(agent)
        await agent.until_reported(lambda report: report.state == "unhealthy")
        (first, *_) = [kind for kind, report in agent.reports() if report.state == "unhealthy"]
        assert first == "state_changed", "it waits for its next heartbeat to say so"
        assert await agent.refusal_code() == "engine_crashed"
        assert not (await agent.health()).ready
        await agent.until_reported(lambda report: report.state == "ready")
        await (await agent.start()).done()


async def test_an_engine_killed_many_times_in_a_row_gives_its_streams_back_and_comes_back(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    most_restarts = examples(1, 3)
    async with running_agent(
        nats_server.url,
        {"tiny": tiny_model},
        engines={"max_restarts": most_restarts, **_QUICK},
        controller={"circuit_breaker": {"recovery_timeout_ms": 300}},
    ) as agent:
        for kills in range(1, examples(3, 10) + 1):
            stream = await agent.start(max_tokens=_LONG)
            await stream.started()
            seen = len(agent.reports())
            _kill_engine(agent)
            assert (await stream.requeued()).code == "engine_crashed"
            await agent.until_reported(
                lambda report, kills=kills: (
                    report.engines[0].restarts == kills  # type: ignore[misc]
                    and report.state == "ready"
                    and report.models[0].state == "warm"
                )
            )
            states = {report.state for _, report in agent.reports()[seen:]}
            assert ("unhealthy" in states) is (kills > most_restarts)
        await (await agent.start()).done()


# Leaving.


async def test_a_draining_worker_takes_nothing_new_ends_its_streams_and_leaves(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        stream = await agent.start(max_tokens=_LONG)
        await stream.started()
        assert (await agent.control("drain", DrainWorker())).ok
        await agent.until_reported(lambda report: report.state == "draining")
        assert await agent.refusal_code() == "draining"
        done = await stream.done()
        assert done.usage.completion_tokens == _LONG
        await agent.wire.wait(lambda: agent.reports()[-1][0] == "left")
        await agent.life
        assert agent.reports()[-1][1].state == "stopped"


async def test_drained_with_a_deadline_it_gives_back_what_still_runs_by_then(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        stream = await agent.start(max_tokens=_LONG, logit_bias=ENDLESS)
        await stream.started()
        assert (await agent.control("drain", DrainWorker(deadline_ms=86_400_000))).ok
        await agent.until_reported(lambda report: report.state == "draining")
        assert not agent.life.done()
        assert (await agent.control("drain", DrainWorker(deadline_ms=0))).ok, (
            "the last order counts"
        )
        assert await agent.life is False
        assert (await stream.requeued()).code == "draining"


async def test_told_to_restart_it_ends_and_says_so_unless_it_is_to_stop(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    for stopped in (False, True):
        async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
            assert (await agent.control("drain", DrainWorker(restart=True))).ok
            if stopped:
                agent.stop.request()
            assert await agent.life is not stopped


async def test_past_its_drain_timeout_a_worker_gives_back_what_still_runs(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}, drain_timeout_ms=1) as agent:
        stream = await agent.start(max_tokens=_LONG)
        await stream.started()
        agent.stop.request()
        await agent.life
        await agent.wire.wait(lambda: agent.reports()[-1][0] == "left")
        failed = await stream.requeued()
        assert (failed.code, failed.suspect) == ("draining", False)
        assert len(stream.ends) == 0


async def test_stopped_in_haste_a_worker_gives_all_back_stops_its_engines_and_leaves(
    nats_server: RunningNats, tiny_model: Path
) -> None:
    async with running_agent(nats_server.url, {"tiny": tiny_model}) as agent:
        stream = await agent.start(max_tokens=_LONG)
        await stream.started()
        pid = agent.agent.report().engines[0].pid
        assert pid is not None
        engine = psutil.Process(pid)
        agent.stop.request(immediate=True)
        await agent.life
        assert not engine.is_running()
        assert (await stream.requeued()).code == "draining"
        await agent.wire.wait(lambda: agent.reports()[-1][0] == "left")


async def test_a_worker_that_lost_nats_for_a_moment_says_so_and_serves_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    with NatsProcess(tmp_path) as server:
        async with running_agent(server.url, {"tiny": tiny_model}) as agent:
            buses: list[Bus] = [agent.wire.bus, agent.agent._bus]
            server.kill()
            for bus in buses:
                await bus.wait_lost()
            server.start()
            for bus in buses:
                await bus.wait_connected()
            await agent.until_reported(lambda report: report.state == "ready")
            await (await agent.start()).done()
