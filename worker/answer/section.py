"""One section of tool calls while it is read, told at once or only when it is whole."""

from worker.answer.calls import CallWriter
from worker.answer.delta import CallDelta
from worker.answer.reader import BrokenCall, Reading, TextReader, run_reading


class CallSection:
    """From the opening of tool calls to their end.

    Args:
        enforced: a grammar lets nothing else come, so that what is read is told at once.

    Attributes:
        opening: what began it.
        text: all that came, its opening included.
        done: the section is complete.
    """

    def __init__(
        self,
        opening: str,
        reading: Reading[None],
        reader: TextReader,
        calls: CallWriter,
        *,
        enforced: bool,
    ) -> None:
        self.opening = opening
        self._reading = reading
        self._reader = reader
        self._calls = calls
        self.enforced = enforced
        self.text = ""
        self.done = False

    @property
    def calls(self) -> int:
        """How many calls there are with its own."""
        return self._calls.count

    @property
    def rest(self) -> str:
        """What came after the end of the section."""
        return self._reader.rest

    def push(self, text: str) -> list[CallDelta]:
        """What is to be told now.

        Raises:
            BrokenCall: it is no section of calls.
        """
        self.text += text
        self._reader.feed(text)
        self.done = run_reading(self._reading)
        return self._calls.take() if self.done or self.enforced else []

    def finish(self) -> list[CallDelta]:
        """As `push`, at the end of the answer. A call that was told in part stays as it is."""
        self._reader.ended = True
        try:
            self.done = run_reading(self._reading)
        except BrokenCall:
            if not self.enforced:
                raise
        return self._calls.take()
