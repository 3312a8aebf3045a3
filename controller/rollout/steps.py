"""The steps of a roll-out: which workers get a version together."""

from collections.abc import Sequence

from shared.errors import InvalidRequest
from shared.ids import WorkerId
from shared.settings.controller import RolloutSettings as Settings


def plan_steps(
    workers: Sequence[WorkerId], settings: Settings, canaries: Sequence[WorkerId] = ()
) -> list[list[WorkerId]]:
    """Return the canaries, then the next workers up to each share of `steps_percent`; no step is
    empty.

    Args:
        canaries: by default the first workers by name.

    Raises:
        InvalidRequest: a canary is not among the workers.
    """
    if missing := [name for name in canaries if name not in workers]:
        raise InvalidRequest(f"there is no worker {missing[0]!r}", code="no_worker")
    first = list(dict.fromkeys(canaries)) or list(workers[: settings.canary])
    ordered = first + [worker for worker in workers if worker not in first]
    ends = [len(first)]
    ends += [-(-len(ordered) * percent // 100) for percent in settings.steps_percent]
    steps, begin = [], 0
    for end in ends:
        if end > begin:
            steps.append(ordered[begin:end])
            begin = end
    return steps
