"""A worker that offers what is in a cache of its own."""

from pathlib import Path

from shared.ids import WorkerId
from shared.messages.files import FilesOffer
from worker.peer_files.cached_files import find_cached_files
from worker.peer_files.server import FileServer


class Offering:
    """Use it as a context manager.

    Attributes:
        server: from which it is fetched.
        asked: the repositories and revisions that it was asked for.
    """

    def __init__(
        self, cache: Path, name: str = "mac-1", *, bytes_per_s: float | None = None
    ) -> None:
        self.name = WorkerId(name)
        self.asked: list[tuple[str, str | None]] = []
        self.server = FileServer("127.0.0.1", 0, bytes_per_s=bytes_per_s)
        self._cache = cache

    def __enter__(self) -> "Offering":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def offer(self, repo: str, revision: str | None) -> FilesOffer:
        cached = find_cached_files(self._cache, repo, revision)
        return FilesOffer(
            worker=self.name,
            urls=[f"https://127.0.0.1:{self.server.port}"],
            authority=self.server.authority,
            ticket=self.server.new_ticket(cached.contents),
            contents=dict(cached.sizes_bytes),
            commit=cached.commit,
            files=dict(cached.files),
        )

    async def ask(self, repo: str, revision: str | None) -> list[FilesOffer]:
        self.asked.append((repo, revision))
        return [self.offer(repo, revision)]
