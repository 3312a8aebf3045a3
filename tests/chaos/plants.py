"""Bugs that are planted into running processes, one for each promise, so that it is seen that the
checker catches them (docs/chaos.md lists them)."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug.

    Attributes:
        promise: which one it breaks, as `checker` calls it.
        plant: breaks the code of this process; called with `controller` or `worker`.
    """

    promise: str
    what: str
    plant: Callable[[str], None]


PLANTS: dict[str, Plant] = {}
