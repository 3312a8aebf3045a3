"""The version of this distribution and of the wire protocol it speaks."""

from importlib.metadata import PackageNotFoundError, version

PROTOCOL = 3
"""Carried by every internal message. Workers and controllers ignore other versions."""

try:
    VERSION = version("mlx-nats-cluster")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0.0.0"
