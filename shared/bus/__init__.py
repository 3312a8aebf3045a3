"""The connection to NATS; the only package that imports the NATS client."""

from shared.bus.bus import Bus
from shared.bus.client import ServerFacts
from shared.bus.key_value import Entry, KeyValueStore
from shared.bus.lease_store import Kept, LeaseStore
from shared.bus.message import Handler, Message
from shared.bus.object_store import ObjectStore
from shared.bus.service import Endpoint, Service
from shared.bus.subscription import Subscription

__all__ = [
    "Bus",
    "Endpoint",
    "Entry",
    "Handler",
    "Kept",
    "KeyValueStore",
    "LeaseStore",
    "Message",
    "ObjectStore",
    "ServerFacts",
    "Service",
    "Subscription",
]
