"""The lines of models."""

from shared.cli.views.models import (
    batching_lines,
    error_lines,
    model_activity,
    model_rows,
    model_table,
    warning_lines,
)
from tests.shared.cli.reports import BIG, IDLE, OVERLOADED, WARMING, failed, loading, warm, worker


def lines(width: int, *workers: object, with_errors: bool = False) -> list[str]:
    rows = model_rows(workers)  # type: ignore[arg-type]
    return [line.plain for line in model_table(rows, width, with_errors=with_errors)]


def test_a_warm_model_shows_size_priority_and_how_long_it_is_idle() -> None:
    assert lines(80, IDLE)[1].split() == [
        "demo", "mac-1", "warm", "512", "MiB", "medium", "pinned", "42s", "0", "0",
    ]  # fmt: skip


def test_a_loading_model_shows_its_phase_and_progress() -> None:
    line = lines(80, WARMING)[2]
    assert "downloading" in line and "17 GiB" in line and line.endswith("━━━━━──────  43%")


def test_requests_that_run_and_wait_are_counted() -> None:
    assert lines(80, OVERLOADED)[2].split()[-2:] == ["12", "30"]


def test_errors_stand_in_the_table_or_below_it_in_full() -> None:
    error = "it needs 17.0 GiB of memory and this worker may only have 9.5 GiB of it, so it " * 2
    sick = worker(models=[warm(), failed(error)])
    assert any(line.endswith("…") for line in lines(80, sick, with_errors=True))
    assert all("needs" not in line for line in lines(80, sick))
    below = [line.plain for line in error_lines(model_rows([sick]), 80)]
    assert " ".join(line.strip() for line in below) == f"{BIG} on mac-1: {error}".strip()


def test_what_was_assumed_of_a_model_stands_below_the_table_a_line_for_each() -> None:
    told = ["4096 tokens are assumed; set max_context_tokens of this model " * 2, "Second."]
    sick = worker(models=[warm(warnings=told), warm()])
    below = [line.plain for line in warning_lines(model_rows([sick]), 80)]
    assert all(len(line) <= 80 for line in below)
    first, second = (f"demo on mac-1: {warning}".strip() for warning in told)
    assert " ".join(line.strip() for line in below) == f"{first} {second}"


def test_below_the_table_stands_whose_rows_are_alone_and_why() -> None:
    why = "log-probabilities of rows of different lengths differ"
    slow = worker(models=[warm(batching="alone", batching_reason=why), loading()])
    below = [line.plain.strip() for line in batching_lines(model_rows([slow]), 80)]
    assert " ".join(below) == f"demo on mac-1: batching: rows alone: {why}"
    assert batching_lines(model_rows([worker(models=[warm(batching="together")])]), 80) == []


def test_the_phase_is_what_a_loading_model_does() -> None:
    assert model_activity(loading()) == "downloading"
    assert model_activity(loading(phase=None)) == "loading"
    assert model_activity(warm(phase="downloading")) == "warm"


def test_calm_is_what_needs_no_attention() -> None:
    calm, busy, failing = model_rows(
        [worker(models=[warm(), warm(queued_requests=1), failed(), loading()])]
    )[:3]
    assert calm.is_quiet and not busy.is_quiet and not failing.is_quiet
