"""The Python client; programs import it as `mlx_nats_cluster`."""

from shared.client.cluster import Cluster, connect
from shared.client.completion import Completion
from shared.client.embeddings import Embeddings
from shared.client.recovery import RecoveryTimes
from shared.client.scores import RankedDocument, Ranking, Scores
from shared.client.stream import Stream
from shared.messages.stream import ChoiceOutput, Timings, Usage

__all__ = [
    "ChoiceOutput",
    "Cluster",
    "Completion",
    "Embeddings",
    "RankedDocument",
    "Ranking",
    "RecoveryTimes",
    "Scores",
    "Stream",
    "Timings",
    "Usage",
    "connect",
]
