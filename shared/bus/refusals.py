"""What the server does not permit. It says so to the connection, not to the call that waits."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.errors import NotPermitted

_VIOLATION = re.compile(r'permissions violation for (?:publish|subscription) to "([^"\s]*)"', re.I)


class PermissionViolations:
    """Lets who waits on a subject know at once that it is in vain."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)

    def heard(self, error: str) -> str | None:
        """An error of the server; the subject, where it is that this is not permitted.

        The client hands errors on in lower case: subjects that differ only in that are one here.
        """
        violation = _VIOLATION.search(error)
        if violation is None:
            return None
        subject = violation[1]
        for scope in self._waiting.get(subject.lower(), ()):
            scope.reschedule(asyncio.get_running_loop().time())
        return subject

    @asynccontextmanager
    async def watched(self, subject: str) -> AsyncIterator[None]:
        """Around waiting for what a message to `subject` brings.

        Raises:
            NotPermitted: this user may not publish it.
        """
        key = subject.lower()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting[key].add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                raise NotPermitted(f"the NATS server does not permit this: {subject}") from None
            raise
        finally:
            self._waiting[key].discard(scope)
            if not self._waiting[key]:
                del self._waiting[key]
