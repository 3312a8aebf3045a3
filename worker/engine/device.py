"""What MLX runs on."""

import contextlib
import ctypes
import platform
from typing import Any

import mlx.core as mx
import psutil

_SHARE_FOR_KV = 0.7
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_FREE_BYTES = 2**30
_LARGEST_ON_HEAP_BYTES = 2**25  # the most that glibc takes


def device_name() -> tuple[str, str]:
    """The device's name for people, and metal, cuda or cpu."""
    info = _info()
    name = str(info.get("device_name") or info.get("architecture") or platform.processor())
    if not on_gpu():
        return name, "cpu"
    return name, "metal" if mx.metal.is_available() else "cuda"


def on_gpu() -> bool:
    return bool(mx.default_device().type == mx.gpu)


def memory_limit_bytes() -> int:
    """What the device recommends as its working set, or has; on a CPU the machine's memory."""
    info = _info()
    recommended = info.get("max_recommended_working_set_size") or info.get("total_memory")
    return int(recommended or psutil.virtual_memory().total)


def free_for_kv_bytes(held: int) -> int:
    """What KV caches may take beside the models that are loaded, where nobody says: most of
    what is left of the memory limit, and of what the machine has left.

    Args:
        held: bytes that caches take already; they count as free for them.
    """
    left = memory_limit_bytes() - mx.get_active_memory()
    if "free_memory" in (info := _info()):  # of a device with memory of its own
        left = min(left, info["free_memory"] + mx.get_cache_memory())
    else:
        left = min(left, psutil.virtual_memory().available)
    return int(_SHARE_FOR_KV * max(0, left + held))


def raise_wired_limit() -> None:
    """Let Metal keep as much memory wired as the device recommends, for this whole process:
    weights that are paged out make every step slow."""
    if mx.metal.is_available():
        mx.set_wired_limit(memory_limit_bytes())


def keep_freed_memory() -> None:
    """Have the allocator keep what is freed for what is allocated next. On Linux MLX allocates
    each result of a CPU operation anew, and glibc gives pages back at once: to map them again
    takes longer than many operations. On a Mac MLX keeps buffers by itself."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP_BYTES)


def release_memory() -> None:
    """Return to the machine what is kept for later. Waits for the device: to take buffers from
    under a kernel has crashed Macs."""
    mx.synchronize()
    mx.clear_cache()
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than with glibc
        ctypes.CDLL(None).malloc_trim(0)


def _info() -> dict[str, Any]:
    return dict(mx.device_info())
