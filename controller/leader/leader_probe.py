"""Whether the leader of a record is gone, as a standby finds out."""

import time

from controller.leader.controller_queries import ControllerQueries
from shared.messages.controller_report import ControllerReport, LeaseRecord

_ABSENT_S = 0.5
_SILENT_S = 3.0


class LeaderProbe:
    """
    Attributes:
        missing: the last probe did not reach a leader.
    """

    def __init__(self, peers: ControllerQueries) -> None:
        self._peers = peers
        self._unreachable: tuple[LeaseRecord, float] | None = None  # the record, and since when
        self._silent = False
        self.missing = False

    def reset(self) -> None:
        """Forget the last probes: this controller leads."""
        self._unreachable, self.missing = None, False

    async def is_gone(self, record: LeaseRecord) -> bool:
        """Probe the leader. Return whether its subject has had no subscriber for `_ABSENT_S`, or
        it has not answered for `_SILENT_S`."""
        probed_at = time.monotonic()
        probed = await self._peers.probe(record.controller)
        if isinstance(probed, ControllerReport) and (
            probed.boot_id == record.boot_id and probed.leader
        ):
            self.reset()
            return False
        if (
            self._unreachable is None
            or self._unreachable[0] != record
            or (self._silent and probed != "silent")
        ):
            self._unreachable = record, probed_at
        self._silent = probed == "silent"
        self.missing = True
        limit_s = _SILENT_S if self._silent else _ABSENT_S
        return time.monotonic() - self._unreachable[1] >= limit_s
