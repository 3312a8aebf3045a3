"""How many viewers may watch the cluster: in all, and of one client. Without I/O."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controller.gateway.live.rights import Caller
from shared.errors import Unavailable
from shared.ids import ClientName

MAX_VIEWERS = 100
MAX_VIEWERS_OF_CLIENT = 10
RESERVED_FOR_ADMINS = 20
"""Places that keys without `admin` cannot take."""


class ViewerLimits:
    """Counts viewers. Without keys all are programs on the gateway's machine, and one client: then
    only the total is limited."""

    def __init__(self) -> None:
        self._of_client: Counter[ClientName] = Counter()
        self._own = 0
        self._all = 0

    def check(self, caller: Caller) -> None:
        """
        Raises:
            Unavailable: the caller may not have another viewer now.
        """
        client = caller.key.client
        if caller.rights != "read" and self._of_client[client] >= MAX_VIEWERS_OF_CLIENT:
            raise Unavailable(f"{client} has {MAX_VIEWERS_OF_CLIENT} viewers, its maximum")
        is_own_full = self._own >= MAX_VIEWERS - RESERVED_FOR_ADMINS
        if self._all >= MAX_VIEWERS or (caller.rights == "own" and is_own_full):
            raise Unavailable(f"{self._all} viewers watch the cluster, the maximum")

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Count a viewer while the context is open."""
        client, own = caller.key.client, caller.rights == "own"
        self._of_client[client] += 1
        self._own += own
        self._all += 1
        try:
            yield
        finally:
            self._of_client[client] -= 1
            self._own -= own
            self._all -= 1
            if not self._of_client[client]:
                del self._of_client[client]
