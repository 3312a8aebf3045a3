"""How one configuration fares: served as mlx-lm serves it, refused, or wrong."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from shared.errors import ModelError
from shared.ids import ModelId
from tests.architectures.comparison import Limits, compare, largest_gap
from tests.architectures.configurations import Configuration
from tests.architectures.references import Ids, Said, load_reference, say_alone, window_tokens
from tests.architectures.served_rows import ANSWER_TOKENS, Answers, ServedRows
from tests.architectures.small_model import write_model
from tests.architectures.unsteady_prompts import UnsteadyPrompts
from worker.engine.batching_verdicts import cache_kinds
from worker.engine.model import LoadedModel, load_model
from worker.link.orders import LoadModel

Outcome = Literal["batched", "alone", "refused", "wrong"]
Stage = Literal["mlx-lm", "engine"]

_LENGTHS = (5, 9, 40, 43, 600)
_COPIED_LENGTHS = (5, 40)
"""Short enough to go into the cache at one go, as mlx-lm does it: else a fault of prompts that come
in parts would count as rounding."""
_MORE_TOKENS = 30
_BEYOND_TOKENS = 20
_LONGEST_TOKENS = 4096
_MOST_CHARACTERS = 200
_FEWEST_TOKENS = 10
"""That all answers have together: else any network would agree."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the table has a line for.

    Attributes:
        reason: why it is refused, not batched, or wrong; with where.
        caches: the kinds of its layers, as mlx-lm names them.
        answers: how many were compared.
        left_out: how many were not, because mlx-lm itself says otherwise of their prompts where it
            computes the same in another right way.
        ties: those that went on otherwise where two tokens were as likely.
        gap: the largest one between log-probabilities that was found.
        allowed_gap: the largest one that rounding explains.
    """

    name: str
    module: str
    outcome: Outcome
    reason: str = ""
    caches: list[str] = field(default_factory=list)
    answers: int = 0
    left_out: int = 0
    ties: int = 0
    gap: float = 0.0
    allowed_gap: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Tally:
    answers: int = 0
    left_out: int = 0
    ties: int = 0
    gap: float = 0.0
    difference: str = ""


def judge_configuration(
    configuration: Configuration, folder: Path, tell: Callable[[Stage], None] = lambda _: None
) -> Judgement:
    """Make the model of a configuration in a folder that is not there yet, and judge it.

    Args:
        tell: who runs next, mlx-lm alone or our engine: either may end this process.
    """
    name, module = configuration.name, configuration.module
    tell("mlx-lm")
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            write_model(folder, configuration)
            network = load_reference(folder)
            prompts = _prompts(window_tokens(network))
            said = {prompt: say_alone(network, prompt, ANSWER_TOKENS) for prompt in prompts}
            longer = [_continued(prompt, said[prompt]) for prompt in prompts]
            said |= {prompt: say_alone(network, prompt, ANSWER_TOKENS) for prompt in longer}
    except (Exception, SystemExit) as error:
        why = _sentence(error)
        if isinstance(error, SystemExit):  # it has printed why
            why = printed.getvalue().strip().rpartition("\n")[2] or why
        return Judgement(name, module, "refused", f"mlx-lm itself fails: {why}")
    if len({token for each in said.values() for token in each.ids}) < _FEWEST_TOKENS:
        return Judgement(name, module, "wrong", "shows nothing: mlx-lm always says the same")
    caches = cache_kinds(network)
    tell("engine")
    try:
        model = load_model(LoadModel(ModelId(name), str(folder)))
    except ModelError as error:
        reason = " ".join(error.message.removeprefix(f"{folder}: ").split())[:_MOST_CHARACTERS]
        return Judgement(name, module, "refused", reason, caches)
    except (Exception, SystemExit) as error:
        return Judgement(name, module, "wrong", f"loading it: {_sentence(error)}", caches)
    judged = _judge_served(name, module, model, caches, said)
    if judged.outcome != "wrong":
        return judged
    unsteady = UnsteadyPrompts(network, said, _epsilon(network))
    again = _judge_served(name, module, model, caches, said, unsteady)
    if not again.left_out:
        return judged
    return replace(again, reason=f"{again.reason}; {unsteady.reason()}".removeprefix("; "))


def _judge_served(
    name: str,
    module: str,
    model: LoadedModel,
    caches: list[str],
    said: dict[Ids, Said],
    unsteady: UnsteadyPrompts | None = None,
) -> Judgement:
    epsilon = _epsilon(model.network)
    reason = ""
    for together in (True, False):
        rows = ServedRows(model, together=together)
        if together and not rows.can_batch:
            reason = "rows at different positions cannot share its caches"
            continue
        copied = {prompt: said[prompt] for prompt in said if len(prompt) in _COPIED_LENGTHS}
        own_gap = _own_gap(rows, copied) if together else 0.0
        limits = Limits(own_gap, epsilon)
        tally = _tally(rows, said, limits, unsteady)
        if not tally.difference:
            outcome: Outcome = "batched" if together else "alone"
            return Judgement(
                name, module, outcome, reason, caches,
                tally.answers, tally.left_out, tally.ties, tally.gap, limits.gap,
            )  # fmt: skip
        where = "rows together" if together else "rows alone"
        reason = f"{reason}; {where}: {tally.difference}".removeprefix("; ")
    return Judgement(name, module, "wrong", reason, caches)


def _tally(
    rows: ServedRows,
    said: dict[Ids, Said],
    limits: Limits,
    unsteady: UnsteadyPrompts | None,
) -> _Tally:
    """Compare all answers; those that differ are left out if their prompts are unsteady."""
    tally = _Tally()
    try:
        for phase, answers in _phases(rows, list(said)):
            for prompt, tokens in answers.items():
                compared = compare(said[prompt], tokens, limits)
                if compared.difference is not None and unsteady and prompt in unsteady:
                    tally.left_out += 1
                    continue
                tally.answers += 1
                tally.ties += compared.tie is not None
                tally.gap = max(tally.gap, compared.gap)
                if compared.difference is not None:
                    where = f"{phase}, {len(prompt)} tokens"
                    tally.difference = f"{where}, {compared.difference}"
                    return tally
    except (Exception, SystemExit) as error:
        tally.difference = _sentence(error)
    return tally


def _phases(rows: ServedRows, every: Sequence[Ids]) -> Iterator[tuple[str, Answers]]:
    """Those that go on from another prompt come last."""
    longer = [prompt for prompt in every if any(_goes_on(prompt, other) for other in every)]
    prompts = [prompt for prompt in every if prompt not in longer]
    yield "at once", rows.at_once(prompts)
    yield from rows.phases(prompts, longer).items()


def _goes_on(prompt: Ids, other: Ids) -> bool:
    return len(prompt) > len(other) and prompt[: len(other)] == other


def _own_gap(rows: ServedRows, said: dict[Ids, Said]) -> float:
    """The largest gap of any row that is batched with copies of itself; of a network that cannot
    do that, as large as rounding never is."""
    try:
        return max(
            largest_gap(answer, tokens)
            for prompt, answer in said.items()
            for tokens in rows.copies(prompt)
        )
    except (Exception, SystemExit):
        return np.inf


def _prompts(window: int) -> list[Ids]:
    chance = np.random.default_rng(5)
    lengths = list(_LENGTHS)
    if window + _BEYOND_TOKENS > max(lengths):
        lengths.append(min(window + _BEYOND_TOKENS, _LONGEST_TOKENS))
    return [tuple(chance.integers(0, 256, length).tolist()) for length in lengths]


def _continued(prompt: Ids, said: Said) -> Ids:
    more = np.random.default_rng(len(prompt)).integers(0, 256, _MORE_TOKENS).tolist()
    return (*prompt, *said.ids, *more)


def _epsilon(network: Any) -> float:
    """The largest step at 1 of the types of its numbers."""
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
    types = {array.dtype for _, array in parameters}
    return max(float(mx.finfo(each).eps) for each in types if mx.issubdtype(each, mx.floating))


def _sentence(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:_MOST_CHARACTERS]}".removesuffix(": ")
