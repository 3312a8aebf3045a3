"""How many NATS servers keep what JetStream keeps for us: it outlives any one of them."""

REPLICAS = 3
"""Asked for first."""
ALONE = 10074
"""The error code of a server that is not one of several: it can keep a stream once only."""
