"""At which lengths of a text its state is kept, beside its end."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotLengths:
    """Multiples of a step. A state that grows with the text is kept at the step times the powers
    of two instead, so that all states of a text take no more than twice its last one.

    Attributes:
        step_tokens: of the first.
        doubling: whether each comes after twice the tokens of the one before.
    """

    step_tokens: int
    doubling: bool = False

    def last(self, tokens: int) -> int:
        """The last of these lengths that a text of so many tokens reaches; 0 for none."""
        steps = tokens // self.step_tokens
        if self.doubling and steps:
            steps = 1 << (steps.bit_length() - 1)
        return steps * self.step_tokens

    def next(self, tokens: int) -> int:
        """The first of these lengths that is greater."""
        last = self.last(tokens)
        return max(self.step_tokens, 2 * last) if self.doubling else last + self.step_tokens
