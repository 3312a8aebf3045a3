"""The connection to NATS; the only package that imports the NATS client."""

from shared.bus.bus import Bus
from shared.bus.lease_store import Kept, LeaseStore
from shared.bus.message import Handler, Message
from shared.bus.service import Endpoint, Service
from shared.bus.subscription import Subscription

__all__ = ["Bus", "Endpoint", "Handler", "Kept", "LeaseStore", "Message", "Service", "Subscription"]
