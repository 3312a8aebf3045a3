"""Which workers get a version together."""

from collections.abc import Sequence

from shared.errors import InvalidRequest
from shared.ids import WorkerId
from shared.settings.controller import RolloutSettings as Settings


def plan_steps(
    workers: Sequence[WorkerId], settings: Settings, canaries: Sequence[WorkerId] = ()
) -> list[list[WorkerId]]:
    """The canaries, then as many as each share asks for, without those before; no step is empty.

    Args:
        canaries: instead of the first ones by name.

    Raises:
        InvalidRequest: one of them is not there.
    """
    if missing := [name for name in canaries if name not in workers]:
        raise InvalidRequest(f"there is no worker {missing[0]!r}", code="no_worker")
    first = list(dict.fromkeys(canaries)) or list(workers[: settings.canary])
    order = first + [worker for worker in workers if worker not in first]
    ends = [len(first)]
    ends += [-(-len(order) * percent // 100) for percent in settings.steps_percent]
    steps, begin = [], 0
    for end in ends:
        if end > begin:
            steps.append(order[begin:end])
            begin = end
    return steps
