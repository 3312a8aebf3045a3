"""The version of this distribution and of the wire protocol it speaks."""

from importlib.metadata import PackageNotFoundError, version

PROTOCOL = 2
"""Carried by every internal message, so that versions can be mixed during an upgrade."""

try:
    VERSION = version("mlx-nats-cluster")
except PackageNotFoundError:  # run from a checkout that was never installed
    VERSION = "0.0.0"
