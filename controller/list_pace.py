"""When the prompts of a list go to workers: in order, and not all at once.

Plain state with the clock passed in: no I/O.
"""

from bisect import insort

from shared.messages.stream import StreamError

MOST_SEEKING = 16
"""So many prompts of a list look for a worker at a time, so that a list does not fill the waiting
room."""

_UNKNOWN_RETRY_MS = 1000
_LONGEST_RETRY_MS = 2000
"""When to come again is a guess; whoever asks here costs little."""


class ListPace:
    """The prompts that are yet to go.

    Args:
        n: choices of each prompt.

    Attributes:
        refused: why the last one came back; None where none did since another one ended.
    """

    def __init__(self, prompts: int, n: int) -> None:
        self.refused: StreamError | None = None
        self._waiting = list(range(prompts))
        self._n = n
        self._not_before = 0.0

    @property
    def over(self) -> bool:
        """Whether every prompt went."""
        return not self._waiting

    def next(self, now: float, *, served: int, seeking: int, places: int) -> int | None:
        """The prompt that goes now, if any.

        Args:
            served: prompts that are on their way, or with a worker.
            seeking: those of them that no worker has yet.
            places: in batches, of the workers that could serve them.
        """
        if not self._waiting or now < self._not_before:
            return None
        if seeking >= MOST_SEEKING or served >= max(1, places // self._n):
            return None
        return self._waiting.pop(0)

    def put_back(self, prompt: int, error: StreamError, now: float) -> None:
        """A prompt found no room; it goes again when there may be some."""
        insort(self._waiting, prompt)
        self.refused = error
        retry_ms = min(error.retry_after_ms or _UNKNOWN_RETRY_MS, _LONGEST_RETRY_MS)
        self._not_before = now + retry_ms / 1000

    def freed(self) -> None:
        """A prompt ended, and left its place."""
        self.refused = None
        self._not_before = 0.0

    def give_up(self) -> list[int]:
        """No more prompts go; returns those that have not."""
        left, self._waiting = self._waiting, []
        return left
