"""Files of models, from worker to worker: who has what, and where it is fetched from.

The files themselves do not pass NATS: they are too many bytes for what carries tokens.
"""

from typing import Annotated

from pydantic import Field

from shared.codec import InternalMessage
from shared.ids import WorkerId

ContentId = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
"""The SHA-256 of a content, or what git names it by, as the hub of models says."""
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]{1,255}$")]
_MOST_FILES = 4096


class FindFiles(InternalMessage):
    """Asks every worker what it has of a repository of the hub.

    Attributes:
        revision: a branch, tag or commit; None for `main`.
    """

    worker: WorkerId
    repo: Annotated[str, Field(max_length=200)]
    revision: Annotated[str, Field(max_length=200)] | None = None


class FilesOffer(InternalMessage):
    """What a worker has, and how it is fetched: GET <url>/<content id>, with the ticket as bearer
    token, over TLS with a certificate of that authority. No answer where it has nothing.

    Attributes:
        urls: of the same place, to be tried in turn.
        authority: PEM, of this worker alone.
        ticket: for these contents, for an hour after it was last used.
        contents: their sizes in bytes.
        commit: what `revision` is here; empty where there is no complete copy of it.
        files: of that commit, by name.
    """

    worker: WorkerId
    urls: Annotated[list[str], Field(min_length=1, max_length=64)]
    authority: Annotated[str, Field(max_length=10_000)]
    ticket: Annotated[str, Field(min_length=1, max_length=200)]
    contents: Annotated[dict[ContentId, Annotated[int, Field(ge=0)]], Field(max_length=_MOST_FILES)]
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    files: Annotated[dict[FileName, ContentId], Field(max_length=_MOST_FILES)] = {}
