"""Model files from worker to worker: which worker has which files, and their URLs.

The files themselves are not sent over NATS, which would delay the tokens.
"""

from typing import Annotated

from pydantic import Field

from shared.codec import WireMessage
from shared.ids import WorkerId

ContentId = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
"""The SHA-256 of a content, or its git object id, as reported by the model hub."""
ModelFileName = Annotated[
    str, Field(pattern=r"^([^./\\\x00-\x1f][^/\\\x00-\x1f]{0,99}/)?[^/\\\x00-\x1f]{1,255}$")
]
"""A file, or a file in a folder of the repository's top folder."""
_MAX_FILES = 4096


class FindFiles(WireMessage):
    """Queries every worker for its files of a repository of the hub.

    Attributes:
        revision: a branch, tag or commit; None for `main`.
    """

    worker: WorkerId
    repo: Annotated[str, Field(max_length=200)]
    revision: Annotated[str, Field(max_length=200)] | None = None


class FilesOffer(WireMessage):
    """The files of a worker. They are downloaded with GET <url>/<content id>, with the ticket as
    bearer token, over TLS with a certificate of `authority`. A worker without files does not reply.

    Attributes:
        urls: alternative addresses of one server, to be tried in turn.
        authority: the worker's own certificate authority, as PEM.
        ticket: valid for these contents, until an hour after its last use.
        contents: the contents with their sizes in bytes.
        commit: of `revision` on this worker; empty without a complete copy of it.
        files: of that commit, by name.
    """

    worker: WorkerId
    urls: Annotated[list[str], Field(min_length=1, max_length=64)]
    authority: Annotated[str, Field(max_length=10_000)]
    ticket: Annotated[str, Field(min_length=1, max_length=200)]
    contents: Annotated[dict[ContentId, Annotated[int, Field(ge=0)]], Field(max_length=_MAX_FILES)]
    commit: Annotated[str, Field(pattern=r"^([0-9a-f]{40})?$")] = ""
    files: Annotated[dict[ModelFileName, ContentId], Field(max_length=_MAX_FILES)] = {}
