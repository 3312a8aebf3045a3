"""What `cluster status` prints."""

import pytest
from rich.cells import cell_len

from shared.cli.views.overview import overview
from shared.messages.controller_report import ControllerReport
from shared.messages.worker_report import WorkerReport
from tests.shared.cli.reports import (
    ALL,
    IDLE,
    OVERLOADED,
    PRESSED,
    STRANGE,
    UNHEALTHY,
    WARMING,
    cluster,
    failed,
    many,
    worker,
)


def text(*workers: WorkerReport, width: int = 80) -> str:
    return "\n".join(line.plain for line in overview(cluster(*workers), width))


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("workers", [[], [IDLE], ALL, [STRANGE], many(40)])
def test_no_line_is_longer_than_the_width(workers: list[WorkerReport], width: int) -> None:
    assert all(cell_len(line) <= width for line in text(*workers, width=width).splitlines())


def test_a_calm_cluster_is_a_few_lines() -> None:
    assert len(text(IDLE).splitlines()) <= 10
    assert "mac-1: " not in text(IDLE)


def test_at_a_glance_it_says_what_is_wrong() -> None:
    shown = " ".join(text(WARMING, OVERLOADED, PRESSED, UNHEALTHY).split())
    for said in (
        "failed 1: broken: no config.json",
        "downloading",
        "43%",
        "mac-3: queue 100/100: 47 rejected",
        "mac-3: engine 1 restarting after 2 restarts",
        "mac-4: memory 47/48 GiB, pressure soft",
        "mac-5: engine 0 failed after 3 restarts",
        "loading it ended the engine twice: killed by signal 9",
        "controller controller-1 ready 3 active 12 completed 1 failed",
    ):
        assert said in shown


def test_it_says_who_leads_or_why_nobody_does() -> None:
    health = cluster(IDLE)
    (first,) = health.controllers
    reason = "the NATS server has no JetStream"
    waiting = first.model_copy(update={"id": "controller-2", "leader_problem": reason})
    leading = first.model_copy(update={"leader": True})

    def shown(*controllers: ControllerReport) -> str:
        told = health.model_copy(update={"controllers": list(controllers)})
        return "\n".join(line.plain for line in overview(told, 200))

    assert "lead" not in shown(first)
    one = shown(leading, waiting)
    assert "controller controller-1 ready, leads" in one and one.count("lead") == 1
    none = shown(waiting, waiting)
    assert none.count(f"no controller leads: {reason}") == none.count("lead") == 1


def test_an_error_is_told_once() -> None:
    assert text(WARMING).count("no config.json") == 1
    assert text(worker(models=[failed("too large")])).count("too large") == 1


def test_without_a_worker_it_says_so() -> None:
    assert "No worker has joined." in text()
