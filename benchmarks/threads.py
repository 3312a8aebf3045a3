"""How many threads a side computes with: as many as an engine of the cluster beside it."""

from shared.settings import load_settings
from worker.host.machine import available_cores, environment_with_threads


def as_many_threads() -> dict[str, str]:
    """The environment of a process that computes, with `worker.engines.threads` or, by default,
    a thread for each core."""
    threads = load_settings().worker.engines.fixed_threads
    return environment_with_threads(threads or available_cores())
