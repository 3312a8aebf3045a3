"""Loads a fast BLAS for MLX on Linux, before MLX is imported.

The Linux wheel of MLX links the reference BLAS (4 GFLOP/s). Loading OpenBLAS globally
*before* the first `import mlx.core` makes its symbols resolve there: 30 to 100 times faster.
On macOS MLX uses Accelerate and Metal, and this module does nothing.

Why these wheels: scipy's and numpy's OpenBLAS prefix their symbols and cannot be used.
`ngsolve-openblas` selects its kernels at run time (DYNAMIC_ARCH), x86-64 only.
`cmeel-openblas` supports Arm too, but is built for one processor: on another one it may crash with
an illegal instruction, so a child process tries it first.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from shared.python_module import python_module

_WHEELS = ("ngsolve-openblas", "cmeel-openblas")
_loaded: list[ctypes.CDLL] = []


def load_fast_blas() -> str:
    """Load OpenBLAS into this process and return the BLAS that MLX will use.

    Call it before anything imports `mlx.core`; `OPENBLAS_NUM_THREADS` must be set already.

    Returns:
        "accelerate", "openblas <version>", or "reference" when OpenBLAS was not found.
    """
    if sys.platform == "darwin":
        return "accelerate"
    if "mlx.core" in sys.modules:
        raise RuntimeError("load_fast_blas() must come before the first import of mlx.core")
    for wheel in _WHEELS:
        for file in _files_of(wheel, "libopenblas"):
            if (config := _load(file)) is not None:
                return " ".join(config.split()[:2]).lower()
    return "reference"


def use_threads(count: int) -> None:
    """Set the number of threads of matrix products; no effect unless OpenBLAS was loaded."""
    for library in _loaded:
        library.openblas_set_num_threads(count)


def _load(file: Path) -> str | None:
    """Load one OpenBLAS globally; return its description, or None if it does not work here."""
    if not _is_dynamic(file) and not _survives_trial(file):
        return None
    try:
        library = _open(file)
    except OSError:
        return None
    library.openblas_get_config.restype = ctypes.c_char_p
    config: bytes = library.openblas_get_config()
    _loaded.append(library)
    return config.decode()


def _open(file: Path) -> ctypes.CDLL:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    _load_bundled_fortran()
    return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def _is_dynamic(file: Path) -> bool:
    """Whether this build selects its kernels for the processor at run time."""
    return b"DYNAMIC_ARCH" in file.read_bytes()


def _survives_trial(file: Path) -> bool:
    """Whether a child process computes a small matrix product without crashing."""
    command = [*python_module("worker.engine.blas"), str(file)]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def _load_bundled_fortran() -> None:
    """Provide `libgfortran.so.5` to OpenBLAS on a machine without that library.

    The wheel of MLX contains the library, renamed `libgfortran-<hash>.so.5.0.0`. A copy in memory
    gets the usual SONAME, by which the loader finds it.

    Raises:
        OSError: the library cannot be loaded.
    """
    for quadmath in _files_of("mlx-cpu", "libquadmath-"):
        ctypes.CDLL(str(quadmath), mode=ctypes.RTLD_GLOBAL)
    for fortran in _files_of("mlx-cpu", "libgfortran-"):
        bundled_name = fortran.name.encode() + b"\0"
        soname = b"libgfortran.so.5\0".ljust(len(bundled_name), b"\0")
        image = fortran.read_bytes().replace(bundled_name, soname)
        descriptor = os.memfd_create("libgfortran.so.5")
        with open(descriptor, "wb") as memory:
            memory.write(image)
            memory.flush()
            ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=ctypes.RTLD_GLOBAL)


def _files_of(package: str, prefix: str) -> list[Path]:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name.startswith(prefix)]


def _trial(file: Path) -> bool:
    """Multiply two matrices of ones; runs in the child process of `_survives_trial`."""
    size = 64
    ones = (ctypes.c_float * (size * size))(*([1.0] * (size * size)))
    product = (ctypes.c_float * (size * size))()
    row_major, no_transpose = 101, 111
    _open(file).cblas_sgemm(
        row_major, no_transpose, no_transpose, size, size, size,
        ctypes.c_float(1), ones, size, ones, size, ctypes.c_float(0), product, size,
    )  # fmt: skip
    return all(value == size for value in product)


if __name__ == "__main__":
    sys.exit(0 if _trial(Path(sys.argv[1])) else 1)
