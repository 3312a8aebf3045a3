"""Which controller owns a request, so that a repeated id and a session's turns meet in one place.

Rendezvous hashing (Thaler & Ravishankar 1998): each controller gets a weight from its id and
the key, the highest wins; when one leaves, only its keys move.
"""

import hashlib
from collections.abc import Iterable

from shared.ids import ClientName, ControllerId, RequestId
from shared.messages.request import InferenceRequest


def meeting_key(client: ClientName, request: InferenceRequest) -> str | None:
    """What decides the owner: the session, else the id that the client chose; None where any
    controller will do."""
    if request.session_id is None and request.request_id is None:
        return None
    return adoption_key(client, request.request_id, request.session_id)


def adoption_key(client: ClientName, request_id: RequestId | None, session_id: str | None) -> str:
    """The same of a request that is under way, for who knows no more of it."""
    if session_id is not None:
        return f"{client}/session/{session_id}"
    return f"{client}/request/{request_id}"


def rank_owners(key: str, controllers: Iterable[ControllerId]) -> list[ControllerId]:
    """The controllers, the owner of the key first, then its successors."""
    return sorted(set(controllers), key=lambda id: (_weight(key, id), id), reverse=True)


def _weight(key: str, controller: ControllerId) -> bytes:
    return hashlib.blake2b(f"{controller}\0{key}".encode(), digest_size=8).digest()
