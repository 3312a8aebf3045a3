"""KV memory: the blocks of computed sequences, cached in memory and on disk. No MLX."""
