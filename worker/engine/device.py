"""The device of MLX: its name and its memory."""

import contextlib
import ctypes
import platform
from typing import Any

import mlx.core as mx
import psutil

_SHARE_FOR_KV = 0.7
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_TRIM_THRESHOLD_BYTES = 2**30
_MMAP_THRESHOLD_BYTES = 2**25  # the maximum in glibc


def device_name() -> tuple[str, str]:
    """Return the device's display name, and metal, cuda or cpu."""
    info = _info()
    name = str(info.get("device_name") or info.get("architecture") or platform.processor())
    if not on_gpu():
        return name, "cpu"
    return name, "metal" if mx.metal.is_available() else "cuda"


def on_gpu() -> bool:
    return bool(mx.default_device().type == mx.gpu)


def memory_limit_bytes() -> int:
    """Return the device's recommended working set, or its memory; on a CPU the machine's memory."""
    info = _info()
    recommended = info.get("max_recommended_working_set_size") or info.get("total_memory")
    return int(recommended or psutil.virtual_memory().total)


def free_for_kv_bytes(held: int) -> int:
    """Return the default KV budget beside the loaded models: 70 % of what is left of the memory
    limit, or of the memory that is free on the machine or device, whichever is less.

    Args:
        held: bytes that KV caches hold already; they count as free.
    """
    left = memory_limit_bytes() - mx.get_active_memory()
    if "free_memory" in (info := _info()):  # a device with separate memory
        left = min(left, info["free_memory"] + mx.get_cache_memory())
    else:
        left = min(left, psutil.virtual_memory().available)
    return int(_SHARE_FOR_KV * max(0, left + held))


def raise_wired_limit() -> None:
    """Let Metal wire as much memory as the device recommends, for this whole process: weights that
    are paged out slow down every step."""
    if mx.metal.is_available():
        mx.set_wired_limit(memory_limit_bytes())


def retain_freed_memory() -> None:
    """Make the allocator reuse freed memory. On Linux MLX allocates each result of a CPU operation
    anew, and glibc returns pages at once: mapping them again takes longer than many operations. On
    a Mac MLX caches buffers itself."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def release_memory() -> None:
    """Return cached buffers to the operating system. Waits for the device first: freeing buffers
    that a kernel still uses has crashed Macs."""
    mx.synchronize()
    mx.clear_cache()
    with contextlib.suppress(OSError, AttributeError):  # libc is not glibc
        ctypes.CDLL(None).malloc_trim(0)


def _info() -> dict[str, Any]:
    return dict(mx.device_info())
