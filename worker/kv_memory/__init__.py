"""What is kept of texts that were computed: which blocks, where, for how long. No MLX here."""
