"""The worker: an agent process that never imports MLX, and engine processes that do."""
