"""The messages that a process has refused: counted by kind, and logged once for each subject."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from shared import subjects
from shared.codec import shortened
from shared.errors import DecodeError, OtherProtocol
from shared.messages.health import IgnoredProcess

logger = logging.getLogger(__name__)

_MAX_LOGGED = 256
_LOGGED_FOR_S = 600.0
"""After this time a subject is logged again. Within it at most `_MAX_LOGGED` lines are written,
whatever is sent."""
_MAX_IGNORED = 64


class _Heard(NamedTuple):
    protocol: int
    at: float


class RefusedMessages:
    """
    Attributes:
        counts: of refused messages, by `DecodeError.kind`.
    """

    def __init__(
        self, silence_limit_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            silence_limit_s: a process of another protocol is forgotten after this time without a
                message.
        """
        self.counts: Counter[str] = Counter()
        self._silence_limit_s = silence_limit_s
        self._clock = clock
        self._logged: set[tuple[str, str]] = set()
        self._logs_since = clock()
        self._ignored: dict[subjects.Process, _Heard] = {}

    def add(self, error: DecodeError, subject: str) -> None:
        """Count a message that could not be read, or that its sender may not send.

        Args:
            subject: of the message, or on which it was requested.
        """
        now = self._clock()
        self.counts[error.kind] += 1
        if isinstance(error, OtherProtocol):
            self._note(subject, error.protocol, now)
        if now - self._logs_since > _LOGGED_FOR_S:
            self._logged.clear()
            self._logs_since = now
        key = error.kind, shortened(subject)
        if key not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(key)
            logger.warning(
                "messages on %s are refused: %s", ascii(key[1])[1:-1], error.message,
                extra={"code": error.kind},
            )  # fmt: skip

    def ignored(self) -> list[IgnoredProcess]:
        """Return the processes whose messages are ignored, because they speak another protocol."""
        self._forget_silent(self._clock())
        return [
            IgnoredProcess(kind=kind, id=id, protocol=heard.protocol)
            for (kind, id), heard in sorted(self._ignored.items())
        ]

    def _note(self, subject: str, protocol: int, now: float) -> None:
        process = subjects.process_of(subject)
        if process is None:
            return
        if process not in self._ignored and len(self._ignored) >= _MAX_IGNORED:
            self._forget_silent(now)
        if process in self._ignored or len(self._ignored) < _MAX_IGNORED:
            self._ignored[process] = _Heard(protocol, now)

    def _forget_silent(self, now: float) -> None:
        horizon = now - self._silence_limit_s
        self._ignored = {name: heard for name, heard in self._ignored.items() if heard.at > horizon}
