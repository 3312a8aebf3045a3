"""How many threads a side computes with: as many as an engine of the cluster beside it."""

from shared.settings import load_settings
from worker.machine import available_cores, environment_with_threads


def as_many_threads() -> dict[str, str]:
    """The environment of a process that computes, with `worker.engines.threads` or, by default,
    a thread for each core."""
    return environment_with_threads(load_settings().worker.engines.threads or available_cores())
