"""What tests of models that embed or score share."""

import random

from shared.client import Cluster
from tests.processes import wait_until

_WORDS = "the of a cat river morning seven bright walks under engine paper said quietly".split()


def random_inputs(count: int, seed: int = 1) -> list[str]:
    """Texts of 1 to 60 words, the same for the same seed."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(1, 60))) for _ in range(count)]


async def wait_until_warm(cluster: Cluster, count: int) -> None:
    """Return once so many models are warm on all workers together."""

    async def are_warm() -> bool:
        workers = (await cluster.health()).workers
        states = [status.state for worker in workers for status in worker.models]
        return states.count("warm") == count

    await wait_until(are_warm)
