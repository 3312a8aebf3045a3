"""Incremental detokenization: never emits a broken character or a part of a stop string.

The decoding follows vLLM's `detokenize_incrementally` and TGI's `decode_token`: the text of
a token depends on its neighbours, so a small window of tokens is decoded again each time.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "�"
CONTEXT_TOKENS = 4
_MAX_MISSING_BYTES = 3


class Detokenizer:
    """Decodes the tokens of one sequence incrementally."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]) -> None:
        """
        Args:
            decode: decodes a whole list of token ids.
            prompt_ids: the last of them are context: some tokenizers drop a leading space.
        """
        self._decode = decode
        self._ids: list[int] = list(prompt_ids[-CONTEXT_TOKENS:])
        if decode(self._ids).endswith(REPLACEMENT):
            self._ids = []
        self._window = 0
        self._decided = len(self._ids)
        self._emitted = len(decode(self._ids))

    def decode_with(self, decode: Decode) -> None:
        """Use the tokenizer of the thread that continues with the sequence."""
        self._decode = decode

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens made certain."""
        self._ids.extend(token_ids)
        text = self._decode(self._ids[self._window :])
        certain = self._certain(text)
        new = certain[self._emitted :]
        self._emitted = max(self._emitted, len(certain))
        if len(certain) == len(text) and new:
            # No text is undecided: the new tokens become the context of the next ones.
            self._window, self._decided = self._decided, len(self._ids)
            self._emitted = len(self._decode(self._ids[self._window :]))
        return new

    def _certain(self, text: str) -> str:
        """Return the part of the window's text that no further token can change.

        An unfinished character decodes to one replacement character, or, if the tokenizer has byte
        tokens, to one for each byte of the run. At most three bytes are missing; a longer run of
        broken bytes stays broken.
        """
        whole = text.rstrip(REPLACEMENT)
        if len(self._ids) - self._decided <= _MAX_MISSING_BYTES:
            return whole
        return text[: max(len(whole), len(text) - _MAX_MISSING_BYTES)]

    def finish(self) -> str:
        """Return the undecided rest at the end, with replacement characters for broken bytes."""
        text = self._decode(self._ids[self._window :])
        return text[self._emitted :]


class StopScanner:
    """Finds the first stop string in a text that arrives in pieces."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stops = tuple(stop_strings)
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def push(self, piece: str) -> str:
        """Return the text that is certain to precede any stop string. Sets `found` at the first
        one."""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            # Of several, the one that is complete first, as if text arrived by characters.
            _, at, self.found = min(found)
            self._held = ""
            return text[:at]
        hold = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def finish(self) -> str:
        """Return the text that was held back as a possible stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
