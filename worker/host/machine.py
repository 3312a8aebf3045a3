"""What the agent knows of its machine without MLX."""

import contextlib
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil

from shared.ids import WorkerId
from shared.messages.worker_report import Hardware
from shared.settings.overrides import Machine

_CUDA_PACKAGES = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""Of a driver: on a PC, on Jetson, under WSL2."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


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
    """The cores this process may use; in a container, as many as its quota is worth."""
    if sys.platform == "linux":
        return min(len(os.sched_getaffinity(0)), _quota_cores())
    return os.cpu_count() or 1


def _quota_cores() -> int:
    """Of the control group; all where it has no quota. See the kernel's cgroup-v2, `cpu.max`."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    return os.cpu_count() or 1


def accelerator() -> str:
    """The kind of GPU that MLX will find here: metal, cuda or none (empty); without loading MLX."""
    if sys.platform == "darwin":
        return "metal" if platform.machine() == "arm64" else ""
    has_driver = any(Path(device).exists() for device in _NVIDIA_DEVICES)
    return "cuda" if has_driver and any(map(_is_installed, _CUDA_PACKAGES)) else ""


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def environment_with_threads(threads: int) -> dict[str, str]:
    """For a child that computes: to be set before OpenBLAS loads, whose own default makes several
    processes slow each other to a crawl."""
    count = str(threads)
    return {**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
