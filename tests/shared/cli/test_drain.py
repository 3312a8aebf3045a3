"""`cluster drain` and `cluster restart` against a simulated cluster."""

import json
import signal

import pytest

from shared.ids import BootId, WorkerId
from shared.messages.control import DrainWorker
from shared.messages.worker_report import WorkerReport
from tests.processes import NatsProcess
from tests.shared.cli.reports import worker
from tests.shared.cli.simulated_cluster import SimulatedCluster, run
from tests.shared.cli.terminal import Terminal

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = WorkerId("mac-1"), WorkerId("mac-2"), WorkerId("mac-3")


def draining(name: str, requests: int) -> WorkerReport:
    return worker(name, state="draining", active_requests=requests)


def again(name: str, state: str = "ready") -> WorkerReport:
    return worker(name, boot_id=BootId("b-new"), state=state)


@pytest.fixture
def three(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.workers = [worker(ONE), worker(TWO), worker(THREE)]
    for name in (ONE, TWO, THREE):
        cluster.lives[name] = [draining(name, 2), draining(name, 1), None]
    return cluster


def comes_back(cluster: SimulatedCluster, *names: WorkerId) -> None:
    for name in names:
        cluster.lives[name] += [again(name, "warming"), again(name)]


# Draining.


async def test_drain_says_what_is_left_until_the_worker_is_gone(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    ran = await run("drain", ONE, "--nats", server.url)
    assert ran.status == 0, ran.err
    assert three.orders == [(ONE, DrainWorker())]
    said = [line for line in ran.err.splitlines() if line.startswith("mac-")]
    assert said == [f"{ONE}: drains, 2 requests left", f"{ONE}: drains, 1 request left"]
    assert ran.out.startswith("mac-1 has left after ")
    assert "To bring a worker back, run `worker` on its machine" in ran.err


async def test_several_are_drained_at_the_same_time(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    ran = await run("drain", ONE, TWO, "--nats", server.url)
    assert three.drained == [ONE, TWO]
    assert [line.split(" after ")[0] for line in ran.out.splitlines()] == [
        "mac-1 has left", "mac-2 has left",
    ]  # fmt: skip


async def test_drain_passes_the_deadline_on_and_need_not_wait(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    ran = await run("drain", ONE, "--deadline", "1.5", "--no-wait", "--nats", server.url)
    assert (ran.status, ran.out) == (0, "mac-1 drains\n")
    assert three.orders == [(ONE, DrainWorker(deadline_ms=1500))]


async def test_a_worker_that_is_back_at_once_has_left(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    three.lives[ONE] = [again(ONE)]
    assert (await run("drain", ONE, "--nats", server.url)).status == 0


async def test_drain_as_json(server: NatsProcess, three: SimulatedCluster) -> None:
    ran = await run("drain", ONE, "--json", "--nats", server.url)
    told = {"worker": "mac-1", "ok": True, "code": None, "message": None}
    assert json.loads(ran.out) == {"workers": [told]} and ran.err == ""


async def test_who_is_not_there_is_named_and_nobody_is_drained(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    ran = await run("drain", ONE, "mac-9", "--nats", server.url)
    assert ran.status == 1 and three.orders == []
    assert "no worker 'mac-9'; there are: mac-1, mac-2, mac-3" in ran.err


async def test_who_refuses_is_told_with_its_reason(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    three.refusal = ("bad_order", "not [red]now[/red]")
    ran = await run("drain", ONE, "--nats", server.url)
    assert ran.status == 1 and "not all workers were drained: mac-1: not [red]now[/red]" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain",), ("drain", ""), ("drain", "mac-1", "--deadline", "-1"),
        ("drain", "mac-1", "--deadline", "soon"), ("drain", "mac-1", "--deadline", "1e9"),
        ("restart", "--rolling", "--within", "0"), ("restart", ""),
    ],
)  # fmt: skip
async def test_wrong_arguments_are_told_before_anybody_is_asked(arguments: tuple[str, ...]) -> None:
    assert (await run(*arguments)).status == 2


async def test_interrupted_it_says_that_the_workers_go_on(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    three.lives[ONE] = [draining(ONE, 2)]
    async with Terminal("drain", ONE, "--nats", server.url) as terminal:
        await terminal.shows("2 requests left")
        terminal.signal(signal.SIGINT)
        assert await terminal.ended() == 130
        await terminal.shows("continue to drain")


# Starting again.


async def test_a_rolling_restart_waits_for_each_to_be_ready(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    comes_back(three, ONE, TWO, THREE)
    ran = await run("restart", "--rolling", "--nats", server.url)
    assert ran.status == 0, ran.err
    assert three.orders == [(name, DrainWorker(restart=True)) for name in (ONE, TWO, THREE)]
    said = [line for line in ran.err.splitlines() if line.startswith("mac-")]
    assert said == [
        f"{name}: {what}"
        for name in (ONE, TWO, THREE)
        for what in ("drains, 2 requests left", "drains, 1 request left", "warming")
    ]
    assert ran.out.count("is ready again after") == 3


async def test_where_one_does_not_come_back_the_others_are_left_alone(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    comes_back(three, ONE)
    ran = await run("restart", "--rolling", "--within", "1", "--json", "--nats", server.url)
    assert ran.status == 1 and three.drained == [ONE, TWO]
    assert [(w["worker"], w["ok"], w["code"]) for w in json.loads(ran.out)["workers"]] == [
        ("mac-1", True, None), ("mac-2", False, "no_worker"), ("mac-3", False, "skipped"),
    ]  # fmt: skip
    assert "it left, and did not come back after 1 s; see its log" in ran.err


async def test_who_is_named_is_started_again_at_the_same_time(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    comes_back(three, ONE, THREE)
    ran = await run("restart", THREE, ONE, "--deadline", "0", "--nats", server.url)
    assert ran.status == 0
    assert set(three.drained) == {ONE, THREE}
    assert three.orders[0][1] == DrainWorker(deadline_ms=0, restart=True)


async def test_all_are_started_again_only_one_after_another(
    server: NatsProcess, three: SimulatedCluster
) -> None:
    ran = await run("restart", "--nats", server.url)
    assert ran.status == 1 and three.orders == []
    assert "name the workers, or restart all with --rolling" in ran.err
