"""All requests that this controller answers for; ended ones are remembered for a while."""

from collections.abc import Iterable

from controller.owned_request import OwnedRequest, RequestKey
from shared.ids import BootId, WorkerId

KEPT_AFTER_END_S = 30.0


class Ledger:
    """Owned requests by client and id."""

    def __init__(self) -> None:
        self._requests: dict[RequestKey, OwnedRequest] = {}

    def add(self, request: OwnedRequest) -> None:
        self._requests[request.key] = request

    def get(self, key: RequestKey) -> OwnedRequest | None:
        return self._requests.get(key)

    @property
    def active(self) -> list[OwnedRequest]:
        return [request for request in self._requests.values() if not request.ended]

    def on_worker(self, worker: WorkerId, boot_id: BootId) -> Iterable[OwnedRequest]:
        """The requests that one boot of a worker was serving."""
        return [r for r in self.active if (r.worker, r.boot_id) == (worker, boot_id)]

    def forget_old(self, now: float) -> None:
        for request in list(self._requests.values()):
            if request.ended_at is not None and now - request.ended_at > KEPT_AFTER_END_S:
                del self._requests[request.key]
