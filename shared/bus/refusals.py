"""Permission violations, which the server reports to the connection, not to the waiting call."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.errors import BusPermissionDenied

_VIOLATION = re.compile(r'permissions violation for (?:publish|subscription) to "([^"\s]*)"', re.I)


class PermissionViolationWatcher:
    """Fails the calls that wait on a subject as soon as the server rejects it."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)

    def record(self, error: str) -> str | None:
        """Handle an error of the server; return the subject if it is a permission violation.

        The client passes errors on in lower case, so subjects are compared without case.
        """
        violation = _VIOLATION.search(error)
        if violation is None:
            return None
        subject = violation[1]
        for scope in self._waiting.get(subject.lower(), ()):
            scope.reschedule(asyncio.get_running_loop().time())
        return subject

    @asynccontextmanager
    async def watch(self, subject: str) -> AsyncIterator[None]:
        """Fail the body if the server rejects its message to `subject`.

        Raises:
            BusPermissionDenied: this user may not publish on `subject`.
        """
        key = subject.lower()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting[key].add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                raise BusPermissionDenied(
                    f"the NATS server does not permit this: {subject}"
                ) from None
            raise
        finally:
            self._waiting[key].discard(scope)
            if not self._waiting[key]:
                del self._waiting[key]
