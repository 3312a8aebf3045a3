"""What is wrong with a worker, in words."""

from shared.cli.views.overview import attention
from shared.messages.engine_status import EngineStatus
from tests.shared.cli.reports import (
    BIG,
    IDLE,
    OVERLOADED,
    PLAIN,
    PRESSED,
    UNHEALTHY,
    WARMING,
    many,
    worker,
)


def said(report: object) -> list[str]:
    return [text.plain for text in attention(report)]  # type: ignore[arg-type]


def test_nothing_is_said_where_all_is_well() -> None:
    for report in (IDLE, PLAIN, *many(3)):
        assert said(report) == []


def test_pre_warming_says_how_far_it_is_and_why_something_failed() -> None:
    assert said(WARMING) == [f"warming 1/3 ({BIG}), failed 1: broken: no config.json"]


def test_a_full_queue_says_what_it_cost() -> None:
    assert "queue 100/100: 47 rejected, 5 dropped since start" in said(OVERLOADED)


def test_memory_pressure_says_what_it_cost() -> None:
    assert said(PRESSED) == ["memory 47/48 GiB, pressure soft, 2 models evicted, 7 refused"]


def test_engines_that_ended_are_named() -> None:
    assert said(OVERLOADED)[1:] == ["engine 0: 1 restart", "engine 1 restarting after 2 restarts"]
    assert said(UNHEALTHY)[-1] == "engine 0 failed after 3 restarts"
    assert said(worker(engines=[EngineStatus(index=0, state="failed")])) == ["engine 0 failed"]
