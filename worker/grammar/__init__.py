"""JSON schemas and grammars of answers, enforced token by token. No MLX.

Built on llguidance (https://github.com/guidance-ai/llguidance).
"""
