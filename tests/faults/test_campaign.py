"""Every kind of fault under load, a rolling restart, and planted bugs that are found live: no
promise is broken but by the planted ones."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shared.client import connect
from tests.faults.campaign import Campaign, Plan
from tests.faults.faults import BY_NAME, EXCEPT_LAME_DUCK, FAULTS
from tests.faults.fleet import QUICK, QUICK_PACE, Fleet
from tests.faults.judge import judged
from tests.faults.known import SMALL, Known, learn
from tests.faults.logs import explained
from tests.faults.plants import PLANTS
from tests.faults.users import Users
from tests.models import make_tiny_model
from tests.shared.cli.simulated_cluster import run
from tests.tiers import long_form

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

EACH_ONCE = Plan(
    seconds=240,
    faults=EXCEPT_LAME_DUCK,
    once=True,
    pause_s=(0.2, 0.6),
    pace=QUICK_PACE,
    users=(3, 2, 2),
    thinks_s=0.5,
    silence_s=12,
)
PLANTED = Plan(
    seconds=60, pause_s=(2.0, 2.5), users=(2, 8, 2), answered_within_s=12, settles_s=12,
    most_faults=3, pace=QUICK_PACE,
)  # fmt: skip
LIVE = ("no retry", "left requests")
"""Planted bugs that every run finds in running processes, which have both; all of them are found in
traces."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context_tokens=4096)


@pytest.fixture(scope="module")
async def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), model, settings=QUICK)
    async with fleet.running():
        yield fleet


@pytest.fixture(scope="module")
async def known(fleet: Fleet) -> Known:
    async with connect(fleet.settings) as cluster:
        return await learn(cluster, SMALL, seed=1)


async def test_under_every_kind_of_fault_every_promise_is_kept(
    fleet: Fleet, known: Known, seed: int
) -> None:
    report = await Campaign(fleet, replace(EACH_ONCE, seed=seed), known, print).run()
    assert report.violations == [], explained(report.violations, fleet.folder)
    assert report.faults == {fault.name: 1 for fault in EXCEPT_LAME_DUCK}
    assert report.requests >= 50


async def test_a_rolling_restart_under_load_breaks_no_promise(fleet: Fleet, known: Known) -> None:
    async with connect(fleet.settings) as cluster, fleet.client() as plain:
        before, pids = await fleet.health(), [worker.process.pid for worker in fleet.workers]
        users = Users(cluster, plain, known, random.Random(1), limit_s=60)
        asking = asyncio.create_task(users.run(library=2, by_hand=1, talkers=1))
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
    assert judged(users.evidence) == []
    assert len(users.evidence.streams) >= 20


@pytest.mark.long_form
async def test_under_random_faults_every_promise_is_kept(
    tmp_path: Path, model: Path, known: Known, seed: int
) -> None:
    """With the default settings, and three servers, one of which may be a lame duck. So long that
    streams are there when workers end: in the short form that is luck."""
    fleet = Fleet(tmp_path, model, servers=3)
    plan = Plan(seed=seed, seconds=120, faults=FAULTS)
    async with fleet.running():
        report = await Campaign(fleet, plan, known, print).run()
    assert report.violations == [], explained(report.violations, tmp_path)
    assert sum(report.faults.values()) >= 15
    assert report.figures["migrations"] > 0


@pytest.mark.parametrize(
    "names", [LIVE, *(long_form((name,)) for name in sorted(PLANTS))], ids=" and ".join
)
async def test_planted_bugs_are_found(
    names: Sequence[str], tmp_path: Path, model: Path, known: Known
) -> None:
    plants = [PLANTS[name] for name in names]
    faults = [BY_NAME[plant.fault] for plant in plants if plant.fault is not None]
    faults = faults or [BY_NAME["a worker's clock jumps"]]
    fleet = Fleet(tmp_path, model, workers=2, controllers=1, plants=names, settings=QUICK)
    with contextlib.ExitStack() as stack:
        for plant in plants:
            if plant.where == "client":
                stack.enter_context(plant.planted())
        async with fleet.running():
            report = await Campaign(fleet, replace(PLANTED, faults=faults), known, print).run()
    found = {violation.promise for violation in report.violations}
    assert {plant.promise for plant in plants} <= found
