"""Chaos: a whole cluster under load and random faults, and a judge that knows only the wire.

`make chaos` runs it (docs/chaos.md). What judges (`checker`, `footprint`) uses nothing of the code
that is judged; what asks uses the Python client as any user does, and a plain NATS client.
"""
