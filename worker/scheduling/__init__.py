"""The scheduler of a worker: queue, admission, engine selection, prefetch, crash attribution."""
