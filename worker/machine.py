"""What the agent knows of its machine without MLX."""

import os
import platform
import sys

import psutil

from shared.messages.events import Hardware
from shared.settings.tree import Engines


def hardware(device: str = "", accelerator: str = "") -> Hardware:
    """This machine; `device` and `accelerator` as an engine found them."""
    return Hardware(
        chip=device or platform.processor() or platform.machine(),
        accelerator=accelerator,
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def available_cores() -> int:
    """The cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_engine(engines: Engines) -> int:
    """As set, or a fair share: engines that each take all cores slow each other to a crawl."""
    return engines.threads or max(1, available_cores() // engines.count)


def environment_with_threads(threads: int) -> dict[str, str]:
    """For a child that computes: to be set before OpenBLAS loads, whose own default makes several
    processes slow each other to a crawl."""
    count = str(threads)
    return {**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
