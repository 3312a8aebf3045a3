"""Every model module of mlx-lm, small and with random weights: what the engine says beside what
mlx-lm says alone."""
