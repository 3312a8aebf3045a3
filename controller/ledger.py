"""All requests that this controller answers for; ended ones are remembered for a while."""

from collections import Counter, deque
from collections.abc import Iterable

from controller.owned_request import OwnedRequest, RequestKey
from shared.ids import ClientName, WorkerId

KEPT_AFTER_END_S = 30.0


class Ledger:
    """Owned requests by client and id."""

    def __init__(self) -> None:
        self._requests: dict[RequestKey, OwnedRequest] = {}
        self._active: dict[RequestKey, OwnedRequest] = {}
        self._ended: deque[OwnedRequest] = deque()  # about in the order of their ends
        self._of_client: Counter[ClientName] = Counter()  # of the active ones

    def add(self, request: OwnedRequest) -> None:
        self._of_client[request.client] += request.key not in self._active
        self._requests[request.key] = self._active[request.key] = request

    def get(self, key: RequestKey) -> OwnedRequest | None:
        return self._requests.get(key)

    def remove(self, request: OwnedRequest) -> None:
        """It is another controller's."""
        if self._requests.get(request.key) is request:
            del self._requests[request.key]
        if self._active.get(request.key) is request:
            self._deactivate(request)

    def has_more(self, client: ClientName, most: int) -> bool:
        """Whether a client has so many, or more, that have not ended."""
        if self._of_client[client] >= most:
            self._sort_out()
        return self._of_client[client] >= most

    @property
    def active(self) -> list[OwnedRequest]:
        self._sort_out()
        return list(self._active.values())

    def on_worker(self, worker: WorkerId) -> Iterable[OwnedRequest]:
        """The requests that a worker, in whatever boot, serves at the time they are asked for."""
        return (request for request in self.active if request.worker == worker)

    def forget_old(self, now: float) -> None:
        self._sort_out()
        while self._ended and _is_old(self._ended[0], now):
            request = self._ended.popleft()
            if self._requests.get(request.key) is request:  # else another came for it
                del self._requests[request.key]

    def _sort_out(self) -> None:
        """Put aside who has ended since this was done last, without what was asked: a prompt may be
        megabytes."""
        ended = [request for request in self._active.values() if request.ended]
        for request in ended:
            self._deactivate(request)
            request.forget_contents()
        self._ended += ended

    def _deactivate(self, request: OwnedRequest) -> None:
        del self._active[request.key]
        self._of_client[request.client] -= 1
        if not self._of_client[request.client]:
            del self._of_client[request.client]


def _is_old(request: OwnedRequest, now: float) -> bool:
    return request.ended_at is not None and now - request.ended_at > KEPT_AFTER_END_S
