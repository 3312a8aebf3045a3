"""Results of agents with and without KV memory."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shared.cli.benches.conversation import TurnResult


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """The load on both sides. Sizes are approximate; the exact size depends on the tokenizer.

    Attributes:
        system_tokens: size of the system prompt that all agents share.
        turn_tokens: what a turn adds before its answer.
        restart: whether the cluster is restarted after half of the turns.
    """

    agents: int
    turns: int
    system_tokens: int
    turn_tokens: int
    max_tokens: int
    restart: bool

    @property
    def restart_after(self) -> int | None:
        """The last turn before the restart, or None."""
        return self.turns // 2 if self.restart else None

    @property
    def parts(self) -> list[range]:
        """The turns of each cluster that is started, before and after the restart."""
        cuts = sorted({0, self.restart_after or 0, self.turns})
        return [range(first + 1, last + 1) for first, last in itertools.pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the spread of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class AnswerStatistics:
    """Statistics of the answers of all agents in one turn, or in all turns."""

    prompt_tokens: int
    computed_tokens: int
    first_token_s: Spread
    answer_s: Spread

    @classmethod
    def of(cls, answers: Sequence[TurnResult]) -> "AnswerStatistics":
        """Return the statistics of at least one answer."""
        return cls(
            sum(answer.prompt_tokens for answer in answers),
            sum(answer.computed_tokens for answer in answers),
            Spread.of(answer.first_token_s for answer in answers),
            Spread.of(answer.seconds for answer in answers),
        )


@dataclass(frozen=True, slots=True)
class BenchSide:
    """Results of one side.

    Attributes:
        seconds: total time of the turns.
        restart_s: from the last answer before the restart until the cluster was ready again.
        problems: what made the results worse.
    """

    answers: Sequence[TurnResult]
    seconds: float
    restart_s: float | None = None
    problems: Sequence[str] = ()

    @property
    def total(self) -> AnswerStatistics:
        return AnswerStatistics.of(self.answers)

    def turn(self, number: int) -> AnswerStatistics:
        return AnswerStatistics.of([answer for answer in self.answers if answer.turn == number])

    def as_dict(self, turns: int) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "restart_s": self.restart_s,
            "problems": list(self.problems),
            "total": asdict(self.total),
            "turns": [{"turn": turn, **asdict(self.turn(turn))} for turn in range(1, turns + 1)],
            "answers": [asdict(answer) for answer in self.answers],
        }


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    """An answer that differs between the two sides."""

    agent: int
    turn: int
    with_kv_memory: str
    without_kv_memory: str


@dataclass(frozen=True, slots=True)
class BenchComparison:
    """Both sides of one run, which had the same prompts."""

    load: BenchLoad
    model: str
    chip: str
    with_memory: BenchSide
    without_memory: BenchSide

    @property
    def differences(self) -> list[AnswerDifference]:
        """Answers that differ. Prompts are equal, so one difference does not cause the next."""
        others = {(answer.agent, answer.turn): answer for answer in self.without_memory.answers}
        return [
            AnswerDifference(answer.agent, answer.turn, answer.text, other.text)
            for answer in self.with_memory.answers
            if answer.text != (other := others[answer.agent, answer.turn]).text
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that --json prints."""
        turns = self.load.turns
        differences = self.differences
        answers = len(self.with_memory.answers)
        return {
            "model": self.model,
            "chip": self.chip,
            "load": asdict(self.load),
            "restart_after": self.load.restart_after,
            "answers": answers,
            "equal_answers": answers - len(differences),
            "differences": [asdict(difference) for difference in differences],
            "with_kv_memory": self.with_memory.as_dict(turns),
            "without_kv_memory": self.without_memory.as_dict(turns),
        }
