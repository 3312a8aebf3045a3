"""The hardware of this machine, as far as it is known without MLX."""

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
from shared.settings.overrides import WorkerProperties

_CUDA_PACKAGES = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""Device files of an NVIDIA driver: on a PC, on Jetson, under WSL2."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def hardware(device: str = "", accelerator: str = "") -> Hardware:
    """Describe this machine; `device` and `accelerator` as an engine reported them."""
    return Hardware(
        chip=device or _chip(),
        accelerator=accelerator,
        cores=available_cores(),
        memory_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def this_machine(worker: WorkerId, labels: Mapping[str, str]) -> WorkerProperties:
    """Return what the overrides of cluster.yaml match against."""
    found = hardware()
    return WorkerProperties(worker, labels, found.chip, found.memory_bytes)


@cache
def _chip() -> str:
    """Return the system's name of the CPU."""
    name = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
        else:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            name = next((line for line in lines if line.startswith("model name")), "")
    return name.rpartition(":")[2].strip() or platform.processor() or platform.machine()


def available_cores() -> int:
    """Return the number of cores that this process may use; in a container, its CPU quota."""
    if sys.platform == "linux":
        return min(len(os.sched_getaffinity(0)), _quota_cores())
    return os.cpu_count() or 1


def _quota_cores() -> int:
    """Return the CPU quota of the control group, rounded up; all cores without a quota. See
    `cpu.max` in the kernel's documentation of cgroup v2."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    return os.cpu_count() or 1


def accelerator() -> str:
    """Return the kind of GPU that MLX will use: metal, cuda, or empty for none. Does not load
    MLX."""
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
    """Return the environment of a compute process. The variables must be set before OpenBLAS
    loads; with its default, all cores per process, several processes slow each other down
    severely."""
    count = str(threads)
    return {**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
