"""What a model says, split into reasoning, content and tool calls. No MLX."""
