"""When a request reached each of its stages on this worker."""

import time
from dataclasses import dataclass

from shared.messages.stream import Timings


@dataclass(slots=True)
class RequestTimes:
    """Moments are on the clock of `time.monotonic`; durations count from the acceptance of the
    request by the leader.

    Attributes:
        elapsed_ms: duration until `received_at`.
        earlier_first_token_ms: duration until an earlier attempt generated the first token.
    """

    received_at: float
    elapsed_ms: float
    earlier_first_token_ms: float | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None

    @property
    def wait_s(self) -> float:
        """Time in the queue of this worker, until admission or until now."""
        return (self.admitted_at or time.monotonic()) - self.received_at

    def duration_ms(self, moment: float) -> float:
        """Return the duration from acceptance to a moment."""
        return (moment - self.received_at) * 1000 + self.elapsed_ms

    @property
    def first_token_ms(self) -> float | None:
        """Duration until the first token of any attempt; None if there is none yet."""
        if self.earlier_first_token_ms is not None:
            return self.earlier_first_token_ms
        return self.duration_ms(self.first_token_at) if self.first_token_at is not None else None

    def timings(self) -> Timings:
        """Return the timings as of now. If an earlier attempt generated the first token, TTFT is
        that attempt's, and the times in the queue and in prefill are this attempt's."""
        now = time.monotonic()
        admitted = self.admitted_at or now
        first = self.first_token_at or now
        continues = self.earlier_first_token_ms is not None
        first_ms, total_ms = self.first_token_ms, self.duration_ms(now)
        ttft_ms = total_ms if first_ms is None else first_ms
        return Timings(
            queue_ms=round(self.duration_ms(admitted) - continues * self.elapsed_ms, 2),
            prefill_ms=round((first - admitted) * 1000, 2),
            ttft_ms=round(ttft_ms, 2),
            decode_ms=round(total_ms - ttft_ms, 2),
        )
