"""How a benchmark runs among tests."""

BESIDE_OTHERS = {
    "CLUSTER__WORKER__ENGINES__COUNT": "1",
    "CLUSTER__WORKER__ENGINES__THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "CLUSTER__WORKER__KV_CACHE__DISK_MB": "0",
}
"""Environment variables. Tests share the cores, and most benchmarks have a worker of the same name,
and with that of the same folder."""
