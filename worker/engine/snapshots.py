"""The lengths of a sequence at which its state is stored, in addition to its end."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotLengths:
    """Multiples of a step. A state that grows with the sequence is stored at the step times powers
    of two instead, so that all states of a sequence take at most twice the size of the last one.

    Attributes:
        step_tokens: the first length.
        doubling: whether each length is twice the one before.
    """

    step_tokens: int
    doubling: bool = False

    def last(self, tokens: int) -> int:
        """Return the last of these lengths within a sequence of `tokens` tokens; 0 for none."""
        steps = tokens // self.step_tokens
        if self.doubling and steps:
            steps = 1 << (steps.bit_length() - 1)
        return steps * self.step_tokens

    def next(self, tokens: int) -> int:
        """Return the first of these lengths that is greater than `tokens`."""
        last = self.last(tokens)
        return max(self.step_tokens, 2 * last) if self.doubling else last + self.step_tokens
