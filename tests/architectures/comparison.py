"""The engine's tokens beside mlx-lm's: equal, equal but for a tie, or different, and where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.architectures.references import Said
from worker.engine.probe import allowed_gap, is_tie
from worker.engine.sequence import GeneratedToken


@dataclass(frozen=True, slots=True)
class Limits:
    """What rounding explains; the arguments are those of `allowed_gap`."""

    own_gap: float
    epsilon: float

    @property
    def gap(self) -> float:
        return allowed_gap(self.own_gap, self.epsilon)


@dataclass(frozen=True, slots=True)
class Compared:
    """One row.

    Attributes:
        gap: the largest one between log-probabilities, up to the first other token.
        tie: the number of a token where another one came because two were as likely.
        difference: what is wrong with it, and where.
    """

    gap: float
    tie: int | None = None
    difference: str | None = None


def largest_gap(said: Said, tokens: Sequence[GeneratedToken]) -> float:
    """Between the log-probabilities of a row, up to the first other token."""
    gaps = [0.0]
    for number, (token, expected) in enumerate(zip(tokens, said.ids, strict=False)):
        gaps.append(_gap(said.logprobs[number], token))
        if token.token_id != expected:
            break
    return max(gaps) if np.isfinite(gaps).all() else np.inf


def compare(said: Said, tokens: Sequence[GeneratedToken], limits: Limits) -> Compared:
    """Judge a row: the tokens of all that mlx-lm said must be there, one by one."""
    largest = 0.0
    for number, (token, expected) in enumerate(zip(tokens, said.ids, strict=False)):
        gap = _gap(said.logprobs[number], token)
        if not gap <= limits.gap:  # nan, too
            problem = f"log-probabilities differ by {gap:.2g} ({limits.gap:.2g} is rounding)"
            return Compared(gap, difference=f"token {number + 1}: {problem}")
        largest = max(largest, gap)
        if token.token_id != expected:
            second, best = np.sort(said.logprobs[number])[-2:]
            if is_tie(best - second, limits.own_gap, limits.epsilon):
                return Compared(largest, tie=number)
            problem = f"{token.token_id} and not {expected}, which was likelier by "
            return Compared(largest, difference=f"token {number + 1}: {problem}{best - second:.2g}")
    if len(tokens) != len(said.ids):
        return Compared(largest, difference=f"{len(tokens)} tokens and not {len(said.ids)}")
    return Compared(largest)


def _gap(expected: npt.NDArray[np.float64], token: GeneratedToken) -> float:
    if token.logprobs is None or token.token_id is None:
        return np.inf
    pairs = [(token.token_id, token.logprobs.sampled), *token.logprobs.top]
    return max(
        0.0 if value == expected[id_] else abs(value - expected[id_]) for id_, value in pairs
    )
