"""All requests that the leader answers for; ended ones are remembered for a while."""

from collections import Counter, deque
from collections.abc import Iterator

from controller.requests.request import ClientRequest, RequestKey
from shared.ids import ClientName

KEPT_AFTER_END_S = 30.0


class RequestStore:
    """Requests by client and id."""

    def __init__(self) -> None:
        self._requests: dict[RequestKey, ClientRequest] = {}
        self._active: dict[RequestKey, ClientRequest] = {}
        self._ended: deque[ClientRequest] = deque()
        self._by_client: Counter[ClientName] = Counter()  # of the active ones

    def __iter__(self) -> Iterator[ClientRequest]:
        """Those that have not ended, in the order of their coming; they may end meanwhile."""
        return iter(list(self._active.values()))

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._active)

    def get(self, key: RequestKey) -> ClientRequest | None:
        """One that is served, or ended not long ago."""
        return self._requests.get(key)

    def count(self, client: ClientName) -> int:
        """How many of a client have not ended; a list of prompts is one."""
        return self._by_client[client]

    def add(self, request: ClientRequest) -> None:
        """In place of one of the same key."""
        if (known := self._requests.get(request.key)) is not None:
            self.remove(known)
        self._requests[request.key] = self._active[request.key] = request
        if request.part_of is None:
            self._by_client[request.client] += 1

    def end(self, request: ClientRequest) -> None:
        """It has ended: what was asked and answered goes."""
        if self._active.get(request.key) is request:
            self._deactivate(request)
            self._ended.append(request)
        request.forget_contents()

    def remove(self, request: ClientRequest) -> None:
        """Forget it at once."""
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        if self._active.get(request.key) is request:
            self._deactivate(request)

    def forget_old(self, now: float) -> None:
        """Forget those that ended long ago."""
        while self._ended and now - (self._ended[0].ended_at or 0.0) > KEPT_AFTER_END_S:
            request = self._ended.popleft()
            if self._requests.get(request.key) is request:  # else another came for it
                del self._requests[request.key]

    def _deactivate(self, request: ClientRequest) -> None:
        del self._active[request.key]
        if request.part_of is not None:
            return
        self._by_client[request.client] -= 1
        if not self._by_client[request.client]:
            del self._by_client[request.client]
