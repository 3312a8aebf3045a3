"""A short campaign, and the same with planted bugs: each of which is found."""

import asyncio
import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from shared.client import connect
from tests.chaos.campaign import Campaign, Plan, Report, judged
from tests.chaos.faults import BY_NAME, FAULTS
from tests.chaos.fleet import Fleet
from tests.chaos.known import Known, learn
from tests.chaos.logs import explained
from tests.chaos.plants import PLANTS
from tests.chaos.users import Users
from tests.models import make_tiny_model
from tests.shared.cli.simulated_cluster import run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

ALL = [fault for fault in FAULTS if fault.name != "a server is a lame duck"]  # that takes 30 s
SHORT = Plan(seconds=30, faults=ALL, pause_s=(1.0, 3.0), users=(4, 3, 2))
PLANTED = Plan(
    seconds=6, pause_s=(1.0, 1.5), users=(3, 4, 2), answered_within_s=12, settles_s=8,
    most_faults=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context_tokens=4096)


@pytest.fixture(scope="module")
async def known(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Known:
    fleet = Fleet(tmp_path_factory.mktemp("peace"), model)
    async with fleet.running(), connect(fleet.settings) as cluster:
        return await learn(cluster, seed=1, asks=12, conversations=2, tokens=300)


async def campaign(
    folder: Path, model: Path, known: Known, plan: Plan, plant: str | None = None
) -> Report:
    fleet = Fleet(folder, model, plant=plant)
    async with fleet.running():
        return await Campaign(fleet, plan, known, print).run()


async def test_under_random_faults_every_promise_is_kept(
    tmp_path: Path, model: Path, known: Known, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--fault-seed")
    report = await campaign(tmp_path, model, known, replace(SHORT, seed=seed))
    assert report.violations == [], explained(report.violations, tmp_path)
    assert sum(report.faults.values()) >= 8
    assert report.requests >= 50


async def test_a_rolling_restart_under_load_breaks_no_promise(
    tmp_path: Path, model: Path, known: Known
) -> None:
    fleet = Fleet(tmp_path, model)
    async with fleet.running(), connect(fleet.settings) as cluster, fleet.client() as plain:
        before, pids = await fleet.health(), [worker.process.pid for worker in fleet.workers]
        users = Users(cluster, plain, known, random.Random(1), limit_s=60)
        asking = asyncio.create_task(users.run(library=4, by_hand=3, talkers=2))
        flags = ("--rolling", "--deadline", "1", "--json")
        ran = await run("restart", *flags, "--nats", fleet.urls[0], limit_s=300)
        users.stop()
        await asking
        after = await fleet.health()
        assert [worker.process.pid for worker in fleet.workers] == pids
    assert ran.status == 0, ran.err
    assert [each["ok"] for each in json.loads(ran.out)["workers"]] == [True] * 3
    for worker in fleet.workers:
        assert after[worker.name]["boot_id"] != before[worker.name]["boot_id"]
    assert judged(users.asked, []) == []
    assert len(users.asked.streams) >= 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One planted bug for each promise; all of them with `--all-plants`."""
    if "name" in metafunc.fixturenames:
        by_promise = {plant.promise: name for name, plant in reversed(PLANTS.items())}
        all_of_them = metafunc.config.getoption("--all-plants")
        metafunc.parametrize("name", PLANTS if all_of_them else sorted(by_promise.values()))


async def test_a_planted_bug_is_found(name: str, tmp_path: Path, model: Path, known: Known) -> None:
    plant = PLANTS[name]
    faults = [BY_NAME[plant.fault]] if plant.fault else [BY_NAME["a worker's clock jumps"]]
    with plant.planted() if plant.where == "client" else contextlib.nullcontext():
        report = await campaign(tmp_path, model, known, replace(PLANTED, faults=faults), name)
    assert plant.promise in {violation.promise for violation in report.violations}
