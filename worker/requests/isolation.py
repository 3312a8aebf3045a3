"""Failure isolation: an unexpected exception ends the request that it was raised for. Neither the
process nor another request ends."""

import logging
import traceback
import weakref
from types import TracebackType

from shared.errors import ClusterError
from shared.messages.stream import ErrorDetails
from worker.requests.active_request import ActiveRequest

logger = logging.getLogger(__name__)

_MAX_LOGGED_LINES = 1000
_MAX_MESSAGE = 300


class FailureIsolation:
    """Guards the loops that process requests, facts and messages one after another.

    Failed requests are collected, and ended by the caller of `take`: the code that was interrupted
    may be iterating over requests.

    Attributes:
        failures: unexpected exceptions since the start.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._failed: dict[ActiveRequest, ErrorDetails] = {}
        self._ended: weakref.WeakSet[ActiveRequest] = weakref.WeakSet()
        self._logged_lines: set[tuple[type[Exception], str, int]] = set()

    def of(self, request: ActiveRequest | None, work: str) -> "_Guard":
        """Return a context in which an exception ends only `request`; with None it ends nothing.

        Args:
            work: what is done, for the log and the client.
        """
        return _Guard(self, request, work)

    def take(self) -> list[tuple[ActiveRequest, ErrorDetails]]:
        """Return, and forget, the requests to end, each with its error; each request once, even if
        its end fails, too."""
        failed, self._failed = self._failed, {}
        self._ended.update(failed)
        return list(failed.items())

    def record(self, error: Exception, work: str) -> ErrorDetails:
        """Log and count an exception; returns the error of the request that it was raised for.

        A `ClusterError` describes what is wrong with the request. Any other exception is a fault of
        this program: each place that raises one is logged once with its traceback.
        """
        if isinstance(error, ClusterError):
            return ErrorDetails.from_exception(error)
        self.failures += 1
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = type(error), frame.filename, frame.lineno or 0
        is_new = place not in self._logged_lines and len(self._logged_lines) < _MAX_LOGGED_LINES
        self._logged_lines.add(place)
        message = f"{work}: {type(error).__name__}: {error}"[:_MAX_MESSAGE]
        message = message.encode(errors="replace").decode()
        logger.error("unexpected error: %s", message, exc_info=error if is_new else None)
        return ErrorDetails.of("internal_error", message)

    def failed(self, request: ActiveRequest | None, error: Exception, work: str) -> None:
        """Record an exception that ends `request`, if it was raised for one."""
        details = self.record(error, work)
        if request is not None and request not in self._ended:
            self._failed.setdefault(request, details)
        elif isinstance(error, ClusterError):
            logger.error("%s: %s", work, error.message)


class _Guard:
    """A class, because a generator takes several times as long, and there is one for each output of
    a step."""

    __slots__ = ("_isolation", "_request", "_work")

    def __init__(
        self, isolation: FailureIsolation, request: ActiveRequest | None, work: str
    ) -> None:
        self._isolation = isolation
        self._request = request
        self._work = work

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._isolation.failed(self._request, error, self._work)
        return True
