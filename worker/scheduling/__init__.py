"""The queue of a worker: admission, engine selection, prefetch, crash attribution."""
