"""What people read, by value."""

from dataclasses import replace

from shared.cli.benches.comparison import BenchComparison
from shared.cli.benches.report import report
from tests.shared.cli.benches.values import LOAD, comparison


def lines(found: BenchComparison, width: int = 140) -> list[str]:
    return [line.plain for line in report(found, width)]


def row(found: BenchComparison, turn: str, width: int = 140) -> list[str]:
    return next(line.split() for line in lines(found, width) if line.startswith(turn))


def test_a_line_for_each_turn_and_one_for_all() -> None:
    assert row(comparison(), "3 ") == [
        *("3", "2,600", "2,600", "200"),
        *("1.50", "(1.00-2.00)", "0.15", "(0.10-0.20)", "10.0"),
        *("3.00", "0.30"),
    ]
    assert row(comparison(), "all ")[:4] == ["all", "10,000", "10,000", "800"]


def test_a_narrow_terminal_has_no_ranges() -> None:
    assert row(comparison(), "3 ", 80) == "3 2,600 2,600 200 1.50 0.15 10.0".split()
    assert all(len(line) <= 80 for line in lines(comparison(), 80))


def test_the_restart_stands_where_it_was() -> None:
    told = lines(comparison())
    place = next(i for i, line in enumerate(told) if "restarted" in line)
    assert told[place - 1].startswith("2 ") and told[place + 1].startswith("3 ")
    without = comparison(replace(LOAD, restart=False))
    assert not any("restart" in line for line in lines(without))


def test_it_says_what_it_comes_to() -> None:
    told = " ".join(lines(comparison()))
    assert "800 with KV memory; 10,000 without, 12.5 times as many" in told
    assert "4.0 s with it; 20.0 s without, 5.0 times as long" in told
    assert "Answers equal: 8 of 8." in told


def test_answers_that_differ_are_shown() -> None:
    told = lines(comparison(said={(2, 3): "else\x1b[2J"}))
    assert "Answers equal: 7 of 8." in told
    assert "Agent 2, turn 3: 'else\\x1b[2J' with it, '2.3' without." in told
    all_else = {(agent, turn): "?" for agent in (1, 2) for turn in range(1, 5)}
    told = lines(comparison(said=all_else))
    assert "Answers equal: 0 of 8." in told and "... and 3 more." in told


def test_what_went_wrong_meanwhile_is_told() -> None:
    found = comparison()
    found = replace(found, with_memory=replace(found.with_memory, problems=["the disk is full"]))
    assert "With it: the disk is full." in lines(found)
