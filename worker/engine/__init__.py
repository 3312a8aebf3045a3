"""The engine process: the only package that imports MLX. Load the BLAS first; see `blas`."""
