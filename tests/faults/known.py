"""What is asked under faults, and the true answers: those that a cluster gives in peace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.client import Cluster, connect
from tests.faults.asks import Ask, Conversation, long_ask, next_turn, varied_asks
from tests.faults.fleet import Fleet
from tests.faults.load import Load, answers_alone
from tests.faults.records import DONE, Answer

_TURNS = 4


@dataclass(frozen=True, slots=True)
class Known:
    """Questions and answers.

    Attributes:
        truths: by the names of asks and turns.
        ties: how many questions were left out because their answer depends on who else is served:
            somewhere in it two tokens are as good as equal, and the last bits of a sum decide.
    """

    asks: Sequence[Ask]
    conversations: Sequence[Conversation]
    truths: dict[str, Answer]
    ties: int


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked.

    Attributes:
        tokens: of the longest answer, but for one.
        long_tokens: of that one, which outlasts several faults.
        crowds: how many are asked at once, to find answers that depend on that.
    """

    asks: int
    conversations: int
    tokens: int
    long_tokens: int
    crowds: Sequence[int]


LARGE = Size(asks=24, conversations=4, tokens=400, long_tokens=2000, crowds=(40, 12, 8, 4))
SMALL = Size(asks=10, conversations=2, tokens=160, long_tokens=1000, crowds=(12, 4))


async def learn(cluster: Cluster, size: Size, seed: int) -> Known:
    """Ask each question alone, and in crowds of several sizes."""
    single = varied_asks(size.asks, shortest=20, longest=size.tokens, seed=seed)
    single.append(long_ask(size.long_tokens))
    alone = await answers_alone(cluster, single)
    truths = {ask.name: answer for ask, answer in zip(single, alone, strict=True)}
    talks = [
        await _converse(cluster, f"conversation {number}", seed, size.tokens // 2, truths)
        for number in range(size.conversations)
    ]
    turns = [turn for talk in talks for turn in talk.turns]
    ties = await _ties(cluster, [*single, *turns], truths, size.crowds)
    known = Known(
        [ask for ask in single if ask.name not in ties],
        [talk for talk in talks if ties.isdisjoint(turn.name for turn in talk.turns)],
        truths,
        len(ties),
    )
    assert known.asks and known.conversations, f"these depend on who else is served: {ties}"
    return known


async def learn_elsewhere(folder: Path, model: Path, size: Size, seed: int) -> Known:
    """The same from a cluster of its own, in an empty folder: one that has no planted bug."""
    fleet = Fleet(folder, model, workers=1, controllers=1)
    async with fleet.running(), connect(fleet.settings) as cluster:
        return await learn(cluster, size, seed)


async def _converse(
    cluster: Cluster, name: str, seed: int, tokens: int, truths: dict[str, Answer]
) -> Conversation:
    said: list[dict[str, Any]] = []
    turns = []
    for place in range(_TURNS):
        turn = next_turn(name, said, place, seed, tokens)
        (truths[turn.name],) = await answers_alone(cluster, [turn])
        answer = {"role": "assistant", "content": truths[turn.name].text[0]}
        said = [*turn.fields["messages"], answer]
        turns.append(turn)
    return Conversation(name, turns)


async def _ties(
    cluster: Cluster, asks: Sequence[Ask], truths: dict[str, Answer], crowds: Sequence[int]
) -> set[str]:
    found: set[str] = set()
    for size in crowds:
        for first in range(0, len(asks), size):
            crowd = asks[first : first + size]
            for ask, record in zip(crowd, await Load(crowd).run(cluster), strict=True):
                if record.end != DONE or record.answer() != truths[ask.name]:
                    found.add(ask.name)
    return found
