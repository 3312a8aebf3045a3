"""The Python client.

from mlx_nats_cluster import connect

async with connect("nats://127.0.0.1:4222") as cluster:
    async for chunk in cluster.stream("What is the capital of France?"):
        print(chunk.text, end="", flush=True)
    answer = await cluster.generate("And of Italy?", temperature=0)
    print(answer.text, answer.usage)
    city = await cluster.generate("Tell me about Paris.", schema=City)  # a pydantic model
    vectors = (await cluster.embed(["a text", "another text"])).vectors

In a wheel the packages `controller`, `shared` and `worker` are inside this one, so that no other
package of an environment has their names (deploy/wheel.py).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.client import ChoiceOutput as ChoiceOutput
    from shared.client import Cluster as Cluster
    from shared.client import Completion as Completion
    from shared.client import Embeddings as Embeddings
    from shared.client import RecoveryTimes as RecoveryTimes
    from shared.client import Stream as Stream
    from shared.client import Timings as Timings
    from shared.client import Usage as Usage
    from shared.client import connect as connect

__all__ = [
    "ChoiceOutput",
    "Cluster",
    "Completion",
    "Embeddings",
    "RecoveryTimes",
    "Stream",
    "Timings",
    "Usage",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Import the client when it is used: the commands import this package, too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shared import client

    return getattr(client, name)
