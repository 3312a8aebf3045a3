"""The engine process: the only place that imports MLX. Load the BLAS first; see `blas`."""
