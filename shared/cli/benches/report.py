"""The printed report of a comparison: a table by turn, and a summary."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from shared.cli.benches.comparison import (
    AnswerDifference,
    AnswerStatistics,
    BenchComparison,
    Spread,
)
from shared.cli.views.fitted_table import Column, table, wrap
from shared.cli.views.formatting import NO_VALUE, count, plain_text

_MOST_DIFFERENCES = 5
_ALL = "all"


@dataclass(frozen=True, slots=True)
class _Row:
    turn: str
    cached: AnswerStatistics
    without: AnswerStatistics


def report(comparison: BenchComparison, width: int) -> list[Text]:
    """Return lines of at most `width` columns, except for long words."""
    return [
        *wrap(_title(comparison), width),
        Text(),
        *_table(comparison, width),
        Text(),
        *(line for text in _findings(comparison) for line in wrap(text, width)),
    ]


def _title(comparison: BenchComparison) -> Text:
    load = comparison.load
    where = f" on {comparison.chip}" if comparison.chip else ""
    return plain_text(
        f"{comparison.model}{where}: {count(load.agents, 'agent')}, {load.turns} turns each, "
        "with and without KV memory. Times are medians over agents (minimum-maximum).",
        "bold",
    )


def _table(comparison: BenchComparison, width: int) -> list[Text]:
    cached, without = comparison.with_memory, comparison.without_memory
    turns = range(1, comparison.load.turns + 1)
    rows = [_Row(str(turn), cached.turn(turn), without.turn(turn)) for turn in turns]
    rows.append(_Row(_ALL, cached.total, without.total))
    titles, *lines = table(_COLUMNS, rows, width)
    if (last := comparison.load.restart_after) is not None:
        lines.insert(last, Text("      the cluster was restarted", style="dim"))
    return [titles, *lines]


def _findings(comparison: BenchComparison) -> list[Text]:
    cached, without = comparison.with_memory, comparison.without_memory
    found = [
        Text(
            f"Prompt tokens prefilled: {cached.total.computed_tokens:,} with KV memory; "
            f"{without.total.computed_tokens:,} without, "
            f"{_ratio(without.total.computed_tokens, cached.total.computed_tokens)} times as many."
        ),
        Text(
            f"All turns took {cached.seconds:.1f} s with it; {without.seconds:.1f} s without, "
            f"{_ratio(without.seconds, cached.seconds)} times as long."
        ),
    ]
    if cached.restart_s is not None and without.restart_s is not None:
        found.append(
            Text(
                f"Restarting the cluster took {cached.restart_s:.1f} s with it; "
                f"{without.restart_s:.1f} s without."
            )
        )
    for name, side in (("With", cached), ("Without", without)):
        found += [plain_text(f"{name} it: {problem}.", "yellow") for problem in side.problems]
    return [*found, *_equality(comparison)]


def _equality(comparison: BenchComparison) -> list[Text]:
    differences = comparison.differences
    answers = len(comparison.with_memory.answers)
    summary = f"Answers equal: {answers - len(differences)} of {answers}."
    lines = [Text(summary, style="red" if differences else "green")]
    lines += [_difference(difference) for difference in differences[:_MOST_DIFFERENCES]]
    if len(differences) > _MOST_DIFFERENCES:
        lines.append(Text(f"... and {len(differences) - _MOST_DIFFERENCES} more."))
    return lines


def _difference(difference: AnswerDifference) -> Text:
    return plain_text(
        f"Agent {difference.agent}, turn {difference.turn}: "
        f"{difference.with_kv_memory!r} with it, {difference.without_kv_memory!r} without."
    )


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.1f}" if other else NO_VALUE


def _tokens(number: int) -> Text:
    return Text(f"{number:,}")


def _median(spread: Spread) -> Text:
    return Text(_seconds(spread.median))


def _range(spread: Spread) -> Text:
    return Text(f"({_seconds(spread.min)}-{_seconds(spread.max)})", style="dim")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 9.995 else f"{seconds:.1f}"


def _speedup(row: _Row) -> Text:
    return Text(_ratio(row.without.first_token_s.median, row.cached.first_token_s.median))


_COLUMNS: Sequence[Column[_Row]] = (
    Column("turn", lambda row: Text(row.turn)),
    Column("prompt", lambda row: _tokens(row.cached.prompt_tokens), right=True),
    Column("prefilled without", lambda row: _tokens(row.without.computed_tokens), right=True),
    Column("with", lambda row: _tokens(row.cached.computed_tokens), right=True),
    Column("first token s without", lambda row: _median(row.without.first_token_s), right=True),
    Column("", lambda row: _range(row.without.first_token_s), rank=1),
    Column("with", lambda row: _median(row.cached.first_token_s), right=True),
    Column("", lambda row: _range(row.cached.first_token_s), rank=1),
    Column("ratio", _speedup, right=True),
    Column("answer s without", lambda row: _median(row.without.answer_s), right=True, rank=2),
    Column("with", lambda row: _median(row.cached.answer_s), right=True, rank=2),
)
