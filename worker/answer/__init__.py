"""Parsing of a model's output into reasoning, content and tool calls. No MLX."""
