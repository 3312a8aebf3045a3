"""The connection to NATS; the only package that imports the NATS client."""

from shared.bus.bus import Bus
from shared.bus.client import ServerInfo
from shared.bus.key_value import KeyValueEntry, KeyValueStore
from shared.bus.lease_store import LeaseEntry, LeaseStore
from shared.bus.object_store import ObjectStore
from shared.bus.receive_statistics import ReceiveStatistics
from shared.bus.service import Endpoint, MicroService
from shared.bus.subscription import Handler, IncomingMessage, Subscription

__all__ = [
    "Bus",
    "Endpoint",
    "Handler",
    "IncomingMessage",
    "KeyValueEntry",
    "KeyValueStore",
    "LeaseEntry",
    "LeaseStore",
    "MicroService",
    "ObjectStore",
    "ReceiveStatistics",
    "ServerInfo",
    "Subscription",
]
