"""All requests of the leader; requests that ended are remembered for a while."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator

from controller.requests.request import RequestKey, TrackedRequest
from shared.ids import ClientName

RETAINED_AFTER_END_S = 30.0
_MAX_ENDED_PER_CLIENT = 50_000
"""So many requests of one client that ended are remembered at most, about 150 MB."""


class RequestStore:
    """Requests by client and id."""

    def __init__(self) -> None:
        self._requests: dict[RequestKey, TrackedRequest] = {}
        self._active: dict[RequestKey, TrackedRequest] = {}
        self._ended: OrderedDict[TrackedRequest, None] = OrderedDict()  # in the order of their ends
        self._ended_of: defaultdict[ClientName, deque[TrackedRequest]] = defaultdict(deque)
        self._by_client: Counter[ClientName] = Counter()  # of the active ones
        self._bytes: Counter[ClientName] = Counter()
        self._total_bytes = 0

    def __iter__(self) -> Iterator[TrackedRequest]:
        """The requests that have not ended, in the order of arrival. They may end while the
        caller iterates."""
        return iter(list(self._active.values()))

    def __len__(self) -> int:
        """Number of requests that have not ended."""
        return len(self._active)

    def get(self, key: RequestKey) -> TrackedRequest | None:
        """Return a request that is served, or ended recently."""
        return self._requests.get(key)

    def count(self, client: ClientName) -> int:
        """Number of requests of a client that have not ended; a list of prompts counts once."""
        return self._by_client[client]

    def memory_bytes(self, client: ClientName | None = None) -> int:
        """The memory that the requests which have not ended take, of one client or of all."""
        return self._total_bytes if client is None else self._bytes[client]

    def add(self, request: TrackedRequest) -> None:
        """Add a request; it replaces one with the same key."""
        if (known := self._requests.get(request.key)) is not None:
            self.remove(known)
        self._requests[request.key] = self._active[request.key] = request
        if request.part_of is None:
            self._by_client[request.client] += 1
            self._weigh(request, request.memory_bytes)

    def weigh(self, request: TrackedRequest, memory_bytes: int) -> None:
        """Change what a request counts for."""
        if self._active.get(request.key) is request and request.part_of is None:
            self._weigh(request, memory_bytes - request.memory_bytes)
        request.memory_bytes = memory_bytes

    def end(self, request: TrackedRequest) -> None:
        """Record that a request ended, and drop its contents and its answer."""
        if self._active.get(request.key) is request:
            self._deactivate(request)
            self._ended[request] = None
            self._ended_of[request.client].append(request)
            if len(self._ended_of[request.client]) > _MAX_ENDED_PER_CLIENT:
                self._forget_oldest(request.client)
        request.forget_contents()

    def remove(self, request: TrackedRequest) -> None:
        """Forget a request at once."""
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        if self._active.get(request.key) is request:
            self._deactivate(request)

    def forget_old(self, now: float) -> None:
        """Forget requests that ended more than `RETAINED_AFTER_END_S` ago."""
        while self._ended:
            oldest = next(iter(self._ended))
            if now - (oldest.ended_at or 0.0) <= RETAINED_AFTER_END_S:
                return
            self._forget_oldest(oldest.client)

    def _forget_oldest(self, client: ClientName) -> None:
        """Forget the request of a client that ended first."""
        request = self._ended_of[client].popleft()
        if not self._ended_of[client]:
            del self._ended_of[client]
        del self._ended[request]
        if self._requests.get(request.key) is request:  # else it was replaced
            del self._requests[request.key]

    def _deactivate(self, request: TrackedRequest) -> None:
        del self._active[request.key]
        if request.part_of is not None:
            return
        self._by_client[request.client] -= 1
        self._weigh(request, -request.memory_bytes)
        if not self._by_client[request.client]:
            del self._by_client[request.client], self._bytes[request.client]

    def _weigh(self, request: TrackedRequest, more_bytes: int) -> None:
        self._bytes[request.client] += more_bytes
        self._total_bytes += more_bytes
