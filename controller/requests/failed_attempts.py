"""How the attempts of a request failed so far: by that `controller.dispatch.dispatcher` decides
whether another one follows, and how long the request waits for a worker."""

from dataclasses import dataclass, field

from shared.ids import WorkerId
from shared.messages.stream import ErrorDetails


@dataclass(slots=True)
class FailedAttempts:
    """
    Attributes:
        count: attempts that failed after a worker had accepted them.
        migrations: those after the answer had begun.
        crashes: those that ended with an engine crash which the request may have caused.
        in_a_row: those since the answer last grew. A worker that drains is no failure, nor is one
            whose full queue gives back an answer that has begun, nor an engine that crashed on
            another request.
        interrupted: the request is owed an answer until its deadline: a worker had accepted it, and
            it was not a full queue that gave it back before its answer had begun.
        workers: on which an attempt failed; other workers are preferred.
        last_error: of the last one.
    """

    count: int = 0
    migrations: int = 0
    crashes: int = 0
    in_a_row: int = 0
    interrupted: bool = False
    workers: set[WorkerId] = field(default_factory=set)
    last_error: ErrorDetails | None = None

    def in_a_row_with(
        self, error: ErrorDetails, *, started: bool, grown: bool, innocent: bool = False
    ) -> int:
        """Return the failures in a row if another attempt fails with `error`.

        Args:
            started: whether the answer has begun.
            grown: the attempt added tokens to the answer. That ends the row: a request that was
                served is hardly why its worker failed.
            innocent: an engine crashed, and another request may be why.
        """
        excused = innocent or error.code == "draining" or (started and error.code == "queue_full")
        return (0 if grown else self.in_a_row) + (not excused)

    def add(
        self,
        error: ErrorDetails,
        worker: WorkerId | None,
        *,
        started: bool,
        grown: bool,
        innocent: bool = False,
    ) -> None:
        """Record that another attempt failed; for the arguments see `in_a_row_with`."""
        self.in_a_row = self.in_a_row_with(error, started=started, grown=grown, innocent=innocent)
        self.count += 1
        self.migrations += started
        self.interrupted = started or error.code != "queue_full"
        self.last_error = error
        if worker is not None:
            self.workers.add(worker)
