"""Events: facts that workers and controllers report to the controllers. All past tense."""

from typing import Literal

from shared.ids import BootId, WorkerId
from shared.messages.base import Count
from shared.messages.controller_report import ControllerReport
from shared.messages.sender import Sender, SentMessage
from shared.messages.worker_report import WorkerReport

Tier = Literal["memory", "disk"]


class KeptPrefixes(SentMessage):
    """The cached prefixes of a worker, so that requests with the same prefix are routed to it.

    At most 500 links of the chains of `shared/messages/prefixes.py` and 500 sessions, the most
    recently used ones, as hexadecimal digits. A worker publishes the changes every 5 s,
    and everything (`whole`) in reply to the order `TellKept`.

    Attributes:
        number: of this message; a controller that missed one queries the whole.
        whole: the message has everything that is cached.
        links: new ones, and those with a new tier.
        sessions: likewise, with the number of their answered turns.
        gone: links and sessions that are not cached any more.
    """

    worker: WorkerId
    boot_id: BootId
    number: Count
    whole: bool = False
    links: dict[str, Tier] = {}
    sessions: dict[str, Count] = {}
    gone: list[str] = []

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.worker, self.boot_id),)


EventType = Literal["joined", "heartbeat", "state_changed", "left"]


class WorkerEvent(SentMessage):
    """A worker's event for all controllers, always with its whole state."""

    type: EventType
    worker: WorkerReport

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.worker.id, self.worker.boot_id),)


class ControllerEvent(SentMessage):
    """A controller's event for all controllers, always with its whole state."""

    type: EventType
    controller: ControllerReport

    @property
    def senders(self) -> tuple[Sender]:
        return (Sender(self.controller.id, self.controller.boot_id),)
