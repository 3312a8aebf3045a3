"""Many streams at once through the client library, each recorded piece by piece."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shared.change_notifier import ChangeNotifier
from shared.client import Cluster
from shared.errors import ClusterError
from tests.faults.asks import Ask
from tests.faults.records import DONE, Answer, Piece, Record

T = TypeVar("T")


@dataclass(slots=True)
class Load:
    """Streams in flight. `records` stand in the order of `asks`.

    Attributes:
        limit_s: a stream that takes longer hangs.
    """

    asks: Sequence[Ask]
    limit_s: float = 90.0
    records: list[Record] = field(init=False)
    _changes: ChangeNotifier = field(default_factory=ChangeNotifier)

    def __post_init__(self) -> None:
        self.records = [Record(ask.name) for ask in self.asks]

    @property
    def tokens(self) -> int:
        return sum(record.tokens for record in self.records)

    async def until_tokens(self, count: int) -> None:
        """Return when so many tokens have come on all streams together, or all have ended."""
        await self._changes.wait_until(
            lambda: self.tokens >= count or all(record.end for record in self.records)
        )

    async def until_accepted(self) -> None:
        """Return when all were accepted, or have ended."""
        await self._changes.wait_until(
            lambda: all(record.accepted or record.end or record.broken for record in self.records)
        )

    async def run(self, cluster: Cluster) -> list[Record]:
        """Run all of them to their ends, which are recorded and never raised."""
        async with asyncio.TaskGroup() as tasks:
            for ask, record in zip(self.asks, self.records, strict=True):
                tasks.create_task(self._run_one(cluster, ask, record))
        return self.records

    async def _run_one(self, cluster: Cluster, ask: Ask, record: Record) -> None:
        try:
            async with asyncio.timeout(self.limit_s):
                await self._follow(cluster, ask, record)
        except TimeoutError:
            record.broken.append(f"hangs for {self.limit_s:g} s")
        except Exception as error:
            record.broken.append(f"raised what is no ClusterError: {error!r}")
        self._changes.notify()

    async def _follow(self, cluster: Cluster, ask: Ask, record: Record) -> None:
        stream = cluster.stream(**ask.fields)
        try:
            async with stream:
                async for chunks in stream.updates():
                    record.accepted = record.accepted or stream.status is not None
                    for chunk in chunks:
                        record.take(
                            Piece(
                                chunk.choice,
                                chunk.index,
                                chunk.token_ids,
                                chunk.text,
                                chunk.finish_reason,
                            )
                        )
                    self._changes.notify()
        except ClusterError as error:
            record.finish(error.code, retryable=error.retryable)
            return
        record.finish(DONE)
        if stream.usage is None or stream.usage.completion_tokens != record.tokens:
            record.broken.append(f"{record.tokens} tokens came, but its usage is {stream.usage}")


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Runs beside the block and is cancelled at its end. Unlike a task group's, the block's
    own errors come out as they are."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def answers_alone(cluster: Cluster, asks: Sequence[Ask]) -> list[Answer]:
    """What an idle cluster answers, one request after another: the truth for later.

    Raises:
        AssertionError: one of them did not end well.
    """
    answers = []
    for ask in asks:
        (record,) = await Load([ask]).run(cluster)
        assert record.end == DONE and not record.broken, record
        answers.append(record.answer())
    return answers


def assert_exact(record: Record, truth: Answer) -> None:
    """A good end means the whole answer, token by token and character by character."""
    assert record.broken == [], f"{record.name}: {record.broken}"
    if record.end == DONE:
        assert record.answer() == truth, f"{record.name}: done, but not the answer it gives alone"
