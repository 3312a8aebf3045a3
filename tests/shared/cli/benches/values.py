"""Comparisons as `cluster bench agents` would have measured them."""

from collections.abc import Mapping
from dataclasses import replace

from shared.cli.benches.comparison import BenchComparison, BenchLoad, BenchSide
from shared.cli.benches.conversation import TurnResult

LOAD = BenchLoad(agents=2, turns=4, system_tokens=1000, turn_tokens=100, max_tokens=8, restart=True)


def answer(agent: int, turn: int) -> TurnResult:
    """Of a prompt of 1,000 tokens and 100 for each turn; agent 2 waits twice as long."""
    return TurnResult(
        agent=agent,
        turn=turn,
        prompt_tokens=1000 + 100 * turn,
        cached_tokens=0,
        completion_tokens=8,
        first_token_s=1.0 * agent,
        seconds=2.0 * agent,
        text=f"{agent}.{turn}",
    )


def comparison(
    load: BenchLoad = LOAD, said: Mapping[tuple[int, int], str] | None = None
) -> BenchComparison:
    """With the memory 100 tokens of each prompt are computed, in a tenth of the time.

    Args:
        said: by the side with the memory instead of what the other one says, by agent and turn.
    """
    pairs = [(agent, turn) for turn in range(1, load.turns + 1) for agent in (1, 2)]
    without = [answer(*pair) for pair in pairs]
    kept = [
        replace(
            each,
            cached_tokens=each.prompt_tokens - 100,
            first_token_s=each.first_token_s / 10,
            seconds=each.seconds / 10,
            text=(said or {}).get((each.agent, each.turn), each.text),
        )
        for each in without
    ]
    restart_s = 5.0 if load.restart else None
    return BenchComparison(
        load, "demo", "M9", BenchSide(kept, 4.0, restart_s), BenchSide(without, 20.0, restart_s)
    )
