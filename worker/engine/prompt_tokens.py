"""Tokens of long texts, without all the work for those that cannot fit.

A tokenizer takes one to three microseconds per byte, and cannot be interrupted. So a long text is
first cut into pieces, whose tokens are counted until there are too many. A cut can add tokens,
because one token or word becomes two: `_CUT_TOKENS` are forgiven for each. What is not refused is
tokenised as a whole.
"""

from collections.abc import Callable, Iterator, Sequence, Sized

_PIECE_CHARACTERS = 65_536
_BOUNDARY_CHARACTERS = 1024
"""A piece ends with white space if there is some so near to its end."""
_CUT_TOKENS = 64
_PARTS_AT_ONCE = 256
_USUAL_CHARACTERS = 4
"""Usual number of characters per token: a text with as many for each token of the limit may fit,
and is tokenised at once."""


class TooManyTokens(Exception):
    """A text has more tokens than the limit; `at_least` is a lower bound of their number."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


def check_length(
    text: str, limit: int, encode: Callable[[str], Sized], pause: Callable[[], None] = lambda: None
) -> None:
    """Check that a text may have `limit` tokens or fewer.

    Args:
        encode: tokenises a piece.
        pause: called between two pieces.

    Raises:
        TooManyTokens: it has more.
    """
    for tokens, _ in _counted(text, limit, encode, pause):
        if tokens > limit:
            raise TooManyTokens(tokens)


def sufficient_part(text: str, limit: int, encode: Callable[[str], Sized]) -> str:
    """Return the beginning of a text that has its first `limit` tokens, or all of it."""
    for tokens, end in _counted(text, limit, encode, lambda: None):
        if tokens > limit:
            return text[:end]
    return text


def tokenised(
    parts: Sequence[str],
    limit: int,
    encode: Callable[[str], list[int]],
    pause: Callable[[], None] = lambda: None,
) -> list[int]:
    """Return the tokens of texts that are tokenised one by one.

    Raises:
        TooManyTokens: there are more than `limit`.
    """
    token_ids: list[int] = []
    for number, part in enumerate(parts):
        try:
            check_length(part, limit - len(token_ids), encode, pause)
        except TooManyTokens as error:
            raise TooManyTokens(len(token_ids) + error.at_least) from None
        token_ids += encode(part)
        if len(token_ids) > limit and number + 1 < len(parts):
            raise TooManyTokens(len(token_ids))
        if number % _PARTS_AT_ONCE == _PARTS_AT_ONCE - 1:
            pause()
    return token_ids


def counted(
    parts: Sequence[str], encode: Callable[[str], list[int]], pause: Callable[[], None]
) -> list[int]:
    """Return the tokens of texts of any length, piece by piece: each cut can add some."""
    token_ids: list[int] = []
    for number, piece in enumerate(piece for part in parts for piece in _pieces(part)):
        token_ids += encode(piece)
        if len(piece) > _BOUNDARY_CHARACTERS or number % _PARTS_AT_ONCE == _PARTS_AT_ONCE - 1:
            pause()
    return token_ids


def _counted(
    text: str, limit: int, encode: Callable[[str], Sized], pause: Callable[[], None]
) -> Iterator[tuple[int, int]]:
    """Yield a lower bound of the tokens of the beginning of a long text, and where it ends."""
    if len(text) <= max(_PIECE_CHARACTERS, _USUAL_CHARACTERS * limit):
        return
    tokens = end = 0
    for piece in _pieces(text):
        tokens += len(encode(piece)) - _CUT_TOKENS
        end += len(piece)
        yield tokens, end
        pause()


def _pieces(text: str) -> Iterator[str]:
    """Cut a text at white space if possible."""
    at = 0
    while len(text) - at > _PIECE_CHARACTERS:
        end = at + _PIECE_CHARACTERS
        words = text[end - _BOUNDARY_CHARACTERS : end].rstrip()
        near = max(words.rfind(" "), words.rfind("\n"))
        if near > 0:
            end += near - _BOUNDARY_CHARACTERS  # before the space, which belongs to the next word
        yield text[at:end]
        at = end
    yield text[at:]
