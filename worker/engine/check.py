"""`worker --check`: prints MLX's device and BLAS, and measures matrix products."""

import argparse
import os
import sys
import time
from importlib.metadata import version

import orjson
import psutil

from worker.engine.blas import load_fast_blas

_SLOW_GFLOPS = 20
_SIZE = 1024
_REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="worker --check")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--why", required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # OpenBLAS reads the variable when it is loaded.
    os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    blas = load_fast_blas()

    from worker.engine.device import device_name, memory_limit_bytes

    name, accelerator = device_name()
    memory = psutil.virtual_memory()
    gflops = _measure_gflops()
    found = {
        "device": name,
        "accelerator": accelerator,
        "blas": blas,
        "threads": arguments.threads,
        "engines": arguments.engines,
        "engines_why": arguments.why,
        "memory_bytes": memory.total,
        "available_memory_bytes": memory.available,
        "memory_limit_bytes": memory_limit_bytes(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "python": sys.version.split()[0],
        "float32_gflops": round(gflops, 1),
        "slow": blas == "reference" and accelerator == "cpu",
    }
    if arguments.json:
        print(orjson.dumps(found).decode())
    else:
        _print(found)


def _measure_gflops() -> float:
    """Return the median speed of a few square float32 products."""
    import mlx.core as mx

    a = mx.random.normal((_SIZE, _SIZE))
    mx.eval(a @ a)
    speeds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        mx.eval(a @ a)
        speeds.append(2 * _SIZE**3 / (time.perf_counter() - started) / 1e9)
    return sorted(speeds)[_REPEATS // 2]


def _print(found: dict[str, object]) -> None:
    for key in ("memory_bytes", "available_memory_bytes", "memory_limit_bytes"):
        found[key.removesuffix("_bytes")] = f"{int(str(found.pop(key))) / 2**30:.1f} GiB"
    slow = found.pop("slow")
    found["engines"] = f"{found['engines']}: {found.pop('engines_why')}"
    for key, value in found.items():
        print(f"{key.replace('_', ' '):>18}  {value}")
    if slow:
        print(
            "\nwarning: MLX uses the reference BLAS, 30 to 100 times slower than OpenBLAS. "
            "Install the requirements of this project into this environment again.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
