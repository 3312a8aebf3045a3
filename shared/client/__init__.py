"""The Python client: `async with connect(...) as cluster: async for chunk in cluster.stream(...)`.

from shared.client import connect

async with connect("nats://127.0.0.1:4222") as cluster:
    async for chunk in cluster.stream("What is the capital of France?"):
        print(chunk.text, end="", flush=True)
    answer = await cluster.generate("And of Italy?", temperature=0)
    print(answer.text, answer.usage)
    city = await cluster.generate("Tell me about Paris.", schema=City)  # a pydantic model
"""

from shared.client.cluster import Cluster, connect
from shared.client.completion import Completion
from shared.client.recovery import RecoveryTimes
from shared.client.stream import Stream
from shared.messages.stream import ChoiceOutput, Timings, Usage

__all__ = [
    "ChoiceOutput",
    "Cluster",
    "Completion",
    "RecoveryTimes",
    "Stream",
    "Timings",
    "Usage",
    "connect",
]
