"""What an answer may be: JSON schemas and tool calls as grammars, enforced token by token. No MLX.

The work is llguidance's (https://github.com/guidance-ai/llguidance).
"""
