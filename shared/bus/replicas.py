"""The number of replicas of our JetStream streams: enough to survive the loss of any one server."""

REPLICAS = 3
"""Requested first."""
NOT_CLUSTERED = 10074
"""The error code of a server outside a NATS cluster, which cannot replicate a stream."""
