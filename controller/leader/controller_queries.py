"""Queries the other controllers for their reports, on their health subjects."""

from typing import Literal

from shared import subjects
from shared.bus import Bus
from shared.codec import decode
from shared.errors import BusError, DecodeError, NoResponders
from shared.ids import ControllerId
from shared.messages.controller_report import ControllerReport
from shared.messages.health import ControllerHealth

_PROBE_S = 1.0
_COLLECT_S = 0.3

ProbeResult = ControllerReport | Literal["absent", "silent"]
"""The report of a controller; or that its health subject has no subscriber, or that it does not
answer."""


class ControllerQueries:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def probe(self, controller: ControllerId) -> ProbeResult:
        """Ask one controller for its report."""
        subject = subjects.controller_health(controller)
        try:
            answer = await self._bus.request(subject, b"", timeout_s=_PROBE_S)
            return decode(ControllerHealth, answer.payload).controller
        except NoResponders:
            return "absent"
        except (BusError, DecodeError):
            return "silent"

    async def query_all(self) -> list[ControllerReport]:
        """Ask all controllers, and return the reports that arrive within 0.3 s.

        Raises:
            BusError: the query cannot be sent.
        """
        answers = await self._bus.request_many(subjects.HEALTH_CONTROLLERS, b"", wait_s=_COLLECT_S)
        return [decode(ControllerHealth, answer.payload).controller for answer in answers]
