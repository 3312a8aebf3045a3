"""What the agent knows of its machine without MLX."""

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import psutil

from shared.ids import WorkerId
from shared.messages.events import Hardware
from shared.settings.overrides import Machine
from shared.settings.tree import Engines


def hardware(device: str = "", accelerator: str = "") -> Hardware:
    """This machine; `device` and `accelerator` as an engine found them."""
    return Hardware(
        chip=device or _chip(),
        accelerator=accelerator,
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def this_machine(worker: WorkerId, labels: Mapping[str, str]) -> Machine:
    """What overrides go by."""
    own = hardware()
    return Machine(worker, labels, own.chip, own.memory_bytes)


@cache
def _chip() -> str:
    """As the system calls it."""
    name = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(asked, capture_output=True, text=True, timeout=5).stdout
        else:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            name = next((line for line in lines if line.startswith("model name")), "")
    return name.rpartition(":")[2].strip() or platform.processor() or platform.machine()


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
