"""Queries the other controllers for their reports, on their health subjects."""

from typing import Literal

from controller.fleet.registry import NodeRegistry
from shared import subjects
from shared.bus import Bus
from shared.codec import decode
from shared.errors import BusError, DecodeError, NoResponders
from shared.ids import ControllerId
from shared.messages.controller_report import ControllerReport
from shared.messages.health import ControllerHealth
from shared.messages.sender import decode_from
from shared.refused_messages import RefusedMessages

_PROBE_S = 1.0
_COLLECT_S = 0.3
_MAX_UNKNOWN = 4

ProbeResult = ControllerReport | Literal["absent", "silent"]
"""The report of a controller; or that its health subject has no subscriber, or that it does not
answer."""


class ControllerQueries:
    """Answers of controllers of other protocol versions count, too: two must not lead."""

    def __init__(self, bus: Bus, registry: NodeRegistry, refused: RefusedMessages) -> None:
        self._bus = bus
        self._registry = registry
        self._refused = refused

    async def probe(self, controller: ControllerId) -> ProbeResult:
        """Ask one controller for its report."""
        subject = subjects.controller_health(controller)
        try:
            answer = await self._bus.request(subject, b"", timeout_s=_PROBE_S)
            health = decode_from(controller, ControllerHealth, answer.payload, any_protocol=True)
        except NoResponders:
            return "absent"
        except BusError:
            return "silent"
        except DecodeError as error:
            self._refused.add(error, subject)
            return "silent"
        return health.controller

    async def query_all(self) -> list[ControllerReport]:
        """Ask all controllers, and return the reports that arrive within 0.3 s: one of each
        controller that is known by its events, or that confirms the report on its own subject.

        Raises:
            BusError: the query cannot be sent.
        """
        answers = await self._bus.request_many(subjects.HEALTH_CONTROLLERS, b"", wait_s=_COLLECT_S)
        reports: dict[ControllerId, ControllerReport] = {}
        for answer in answers:
            try:
                report = decode(ControllerHealth, answer.payload).controller
            except DecodeError as error:
                self._refused.add(error, subjects.HEALTH_CONTROLLERS)
            else:
                reports.setdefault(report.id, report)
        known = {report.id for report in self._registry.controllers}
        for unknown in list(reports.keys() - known)[:_MAX_UNKNOWN]:
            probed = await self.probe(unknown)
            if isinstance(probed, ControllerReport):
                reports[unknown] = probed
                known.add(unknown)
        return [report for report in reports.values() if report.id in known]
