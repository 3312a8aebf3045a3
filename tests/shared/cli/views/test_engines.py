"""The lines of engines."""

from shared.cli.views.engines import engine_rows, engine_table
from tests.shared.cli.reports import IDLE, OVERLOADED


def test_each_batch_has_a_line_and_the_engines_own_figures_stand_once() -> None:
    _, demo, big, restarting = (
        line.plain.split() for line in engine_table(engine_rows([OVERLOADED]), 240)
    )
    assert demo == [
        "mac-3/0", "running", "50123", "demo", "16/16", "4", "104ms", "35%", "7.9/8.0", "GiB",
        "75%", "1.5", "GiB", "12", "GiB",
        "12", "1", "30", "GiB", "1.4", "18→16", "9s", "ago", "at", "131ms:", "too", "slow",
    ]  # fmt: skip
    assert big[1:] == [OVERLOADED.models[1].id, "12/14", "0", "99ms", "90%"]
    assert restarting[:3] == ["mac-3/1", "restarting", "50124"]


def test_an_engine_without_a_batch_shows_its_sequences() -> None:
    (row,) = engine_rows([IDLE])
    assert engine_table([row], 80)[1].plain.split()[:4] == ["mac-1/0", "running", "4711", "0"]


def test_80_columns_keep_rows_step_and_cache() -> None:
    titles, line, *_ = (text.plain for text in engine_table(engine_rows([OVERLOADED]), 80))
    for title, figure in (("rows", "16/16"), ("step", "104ms"), ("kv cache", "7.9/8.0 GiB")):
        assert title in titles and figure in line
