"""One section of tool calls while it is read; deltas are sent at once, or when it is complete."""

from worker.answer.calls import CallDeltaBuilder
from worker.answer.parser import CallDelta
from worker.answer.reader import BrokenCall, Reading, TextReader, run_reading


class CallSectionParser:
    """The text from the opening of tool calls to their end.

    Args:
        enforced: a grammar enforces the section, so that deltas can be sent at once.

    Attributes:
        opening: the marker that began the section.
        text: the text of the section so far, its opening included.
        done: the section is complete.
    """

    def __init__(
        self,
        opening: str,
        reading: Reading[None],
        reader: TextReader,
        calls: CallDeltaBuilder,
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
        """Number of calls of the answer, those of this section included."""
        return self._calls.count

    @property
    def rest(self) -> str:
        """The text after the end of the section."""
        return self._reader.rest

    def push(self, text: str) -> list[CallDelta]:
        """Return the deltas that can be sent now.

        Raises:
            BrokenCall: the text is not a section of calls.
        """
        self.text += text
        self._reader.feed(text)
        self.done = run_reading(self._reading)
        return self._calls.take_deltas() if self.done or self.enforced else []

    def finish(self) -> list[CallDelta]:
        """Return the rest of the deltas at the end of the answer; a call that was sent in part
        stays as it is.

        Raises:
            BrokenCall: the text is not a section of calls, and no grammar enforced it.
        """
        self._reader.ended = True
        try:
            self.done = run_reading(self._reading)
        except BrokenCall:
            if not self.enforced:
                raise
        return self._calls.take_deltas()
