"""`cluster models` against a simulated cluster."""

import json
import signal

import pytest

from shared.ids import WorkerId
from shared.messages.control import LoadModel, UnloadModel
from tests.processes import NatsProcess
from tests.shared.cli.reports import ALL, BIG, DEMO, IDLE, WARMING, failed, loading, warm, worker
from tests.shared.cli.simulated_cluster import SimulatedCluster, run
from tests.shared.cli.terminal import Terminal

pytestmark = pytest.mark.anyio

ONE, TWO = WorkerId("mac-1"), WorkerId("mac-2")
COLD = warm(state="available", idle_s=None)
WARM = warm()


@pytest.fixture
def two_cold(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.workers = [worker(ONE, models=[COLD]), worker(TWO, models=[COLD])]
    stages = [loading(id=DEMO), loading(id=DEMO, phase="warming", progress=1), WARM]
    cluster.stages = {ONE: [*stages], TWO: [*stages]}
    return cluster


@pytest.mark.parametrize("command", [("models",), ("models", "ls")])
async def test_it_lists_models_by_name_with_their_errors_in_full(
    server: NatsProcess, cluster: SimulatedCluster, command: tuple[str, ...]
) -> None:
    cluster.workers = ALL
    ran = await run(*command, "--nats", server.url)
    assert ran.status == 0 and ran.err == ""
    names = [line.split()[0] for line in ran.out.splitlines()]
    assert names.count("demo") == 4
    assert "killed by signal 9" in ran.out and "43%" in ran.out


async def test_as_json_it_lists_the_models_of_each_worker(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [IDLE, WARMING]
    listed = json.loads((await run("models", "--json", "--nats", server.url)).out)
    assert [one["id"] for one in listed["workers"]] == ["mac-1", "mac-2"]
    assert [model["state"] for model in listed["workers"][1]["models"]] == [
        "warm", "loading", "failed",
    ]  # fmt: skip


async def test_load_orders_it_everywhere_and_says_each_phase_until_it_is_warm(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    ran = await run("models", "load", "demo", "--nats", server.url)
    assert ran.status == 0
    assert two_cold.loads == [ONE, TWO]
    for name in (ONE, TWO):
        said = [line for line in ran.err.splitlines() if line.startswith(name)]
        assert said == [f"{name}: downloading demo", f"{name}: warming demo"]
        assert f"{name}: demo is warm after " in ran.out


async def test_load_leaves_alone_who_holds_it_already(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.workers[0] = worker(ONE, models=[WARM])
    ran = await run("models", "load", "demo", "--nats", server.url)
    assert two_cold.loads == [TWO]
    assert "mac-1: demo is warm already" in ran.out


async def test_load_orders_it_on_one_worker_and_need_not_wait(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    ran = await run("models", "load", "demo", "--worker", TWO, "--no-wait", "--nats", server.url)
    assert ran.out == "mac-2: demo is being loaded\n"
    assert two_cold.orders == [(TWO, LoadModel(model=DEMO))]


async def test_load_fails_with_each_workers_reason(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.stages[TWO] = [loading(id=DEMO), failed("[red]no room[/red]", id=DEMO)]
    ran = await run("models", "load", "demo", "--nats", server.url)
    assert ran.status == 1
    assert "mac-1: demo is warm" in ran.out
    assert "error: demo could not be loaded: mac-2: [red]no room[/red]" in ran.err


async def test_load_fails_where_it_was_unloaded_meanwhile(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.stages[TWO] = [loading(id=DEMO), COLD]
    ran = await run("models", "load", "demo", "--worker", TWO, "--nats", server.url)
    assert ran.status == 1 and "it was unloaded before it was warm" in ran.err


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_a_refusal_is_an_error(
    server: NatsProcess, two_cold: SimulatedCluster, verb: str
) -> None:
    two_cold.refusal = ("memory_pressure", "it needs 17 GiB, there are 9 GiB")
    ran = await run("models", verb, "demo", "--worker", ONE, "--json", "--nats", server.url)
    assert ran.status == 1
    assert json.loads(ran.err)["error"]["code"] == "memory_pressure"
    assert json.loads(ran.out) == {
        "model": "demo",
        "workers": [
            {
                "worker": "mac-1",
                "ok": False,
                "code": "memory_pressure",
                "message": "it needs 17 GiB, there are 9 GiB",
            }
        ],
    }


async def test_json_says_what_became_of_each_order_and_nothing_else(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    ran = await run("models", "load", "demo", "--json", "--nats", server.url)
    assert ran.err == ""
    assert [(one["worker"], one["ok"]) for one in json.loads(ran.out)["workers"]] == [
        (ONE, True), (TWO, True),
    ]  # fmt: skip


async def test_unload_orders_it_only_where_it_is_loaded(
    server: NatsProcess, cluster: SimulatedCluster
) -> None:
    cluster.workers = [worker(ONE, models=[WARM]), worker(TWO, models=[COLD])]
    ran = await run("models", "unload", "demo", "--nats", server.url)
    assert ran.out == "mac-1: demo is unloaded; its state is available\n"
    listed = (await run("models", "--nats", server.url)).out
    assert [line.split()[2] for line in listed.splitlines()[1:]] == ["available", "available"]
    assert cluster.orders == [(ONE, UnloadModel(model=DEMO))]
    cluster.workers = [worker(TWO, models=[COLD])]
    assert (await run("models", "unload", "demo", "--nats", server.url)).out == (
        "No worker has demo loaded.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("load", "nope"), f"no worker has a model 'nope'; there are: demo, {BIG}"),
        (("unload", "nope"), f"no worker has a model 'nope'; there are: demo, {BIG}"),
        (("load", str(BIG), "--worker", "mac-1"), "worker mac-1 has no model"),
        (("load", "demo", "--worker", "mac-9"), "no worker 'mac-9'; there are: mac-1, mac-2"),
        (("load", "demo", "--worker", "*"), "no worker '*'; there are: mac-1, mac-2"),
        (("load", ""), "must not be empty"),
        (("lod",), "No such command 'lod'"),
    ],
)
async def test_what_is_not_there_is_refused_with_what_is(
    server: NatsProcess, cluster: SimulatedCluster, arguments: tuple[str, ...], said: str
) -> None:
    cluster.workers = [IDLE, worker(TWO, models=[loading()])]
    ran = await run("models", *arguments, *(["--nats", server.url] if len(arguments) > 1 else []))
    assert ran.status in (1, 2) and said in ran.err
    assert cluster.orders == []


async def test_a_worker_that_is_gone_is_an_error(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.silent.add(TWO)
    ran = await run("models", "load", "demo", "--nats", server.url)
    assert ran.status == 1
    assert "could not be loaded: mac-2: worker mac-2 does not answer" in ran.err


async def test_on_a_terminal_it_shows_a_bar(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.stages = {ONE: [loading(id=DEMO)], TWO: [loading(id=DEMO)]}
    async with Terminal("models", "load", "demo", "--nats", server.url) as terminal:
        await terminal.shows("mac-2: downloading demo")
        await terminal.shows("43%")
        two_cold.stages = {ONE: [WARM], TWO: [WARM]}
        await terminal.shows("mac-2: demo is warm after")
        assert await terminal.ended() == 0


async def test_ctrl_c_leaves_the_workers_loading(
    server: NatsProcess, two_cold: SimulatedCluster
) -> None:
    two_cold.stages = {ONE: [loading(id=DEMO)], TWO: [loading(id=DEMO)]}
    async with Terminal("models", "load", "demo", "--nats", server.url) as terminal:
        await terminal.shows("43%")
        terminal.signal(signal.SIGINT)
        await terminal.shows("The workers continue to load.")
        assert await terminal.ended() == 130
