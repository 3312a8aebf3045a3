"""What clients saw of their requests, checked from the outside: nothing of the code that is judged
is used here."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

DONE = "done"


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of one choice; `index` is that of the first."""

    choice: int
    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices of a request, whole, by their number."""

    token_ids: dict[int, list[int]]
    text: dict[int, str]
    finish_reason: dict[int, str | None]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))


@dataclass(slots=True)
class Record:
    """One stream of the client library, from its start to its end.

    Attributes:
        accepted: whether its client knows that it will be answered.
        end: `done` or the code of an error; None while it goes on.
        broken: the rules that were broken, in words.
    """

    name: str
    started_at: float = field(default_factory=time.monotonic)
    pieces: list[Piece] = field(default_factory=list)
    heard_at: list[float] = field(default_factory=list)
    accepted: bool = False
    end: str | None = None
    retryable: bool = False
    broken: list[str] = field(default_factory=list)
    _next_index: dict[int, int] = field(default_factory=dict)
    _finished: set[int] = field(default_factory=set)

    def take(self, piece: Piece) -> None:
        """Note a piece, and what is wrong with it."""
        self.heard_at.append(time.monotonic())
        self.pieces.append(piece)
        expected = self._next_index.get(piece.choice, 0)
        if self.end is not None:
            self.broken.append(f"tokens from {piece.index} on came after the end")
        if piece.choice in self._finished:
            self.broken.append(f"choice {piece.choice} went on after its finish_reason")
        if piece.index < expected:
            self.broken.append(f"tokens from {piece.index} on came twice, {expected} was next")
        if piece.index > expected:
            self.broken.append(f"tokens {expected} to {piece.index - 1} are missing")
        self._next_index[piece.choice] = piece.index + len(piece.token_ids)
        if piece.finish_reason is not None:
            self._finished.add(piece.choice)

    def finish(self, end: str, *, retryable: bool = False) -> None:
        """Note an end."""
        self.heard_at.append(time.monotonic())
        if self.end is not None:
            self.broken.append(f"a second end, {end}, after {self.end}")
            return
        self.end, self.retryable = end, retryable
        if end == DONE and self._finished != set(self._next_index):
            self.broken.append("done came before a finish_reason of each choice")

    @property
    def tokens(self) -> int:
        return sum(len(piece.token_ids) for piece in self.pieces)

    @property
    def ended_at(self) -> float:
        return self.heard_at[-1] if self.heard_at else self.started_at

    @property
    def last_token_at(self) -> float | None:
        return self.heard_at[len(self.pieces) - 1] if self.pieces else None

    @property
    def longest_wait_s(self) -> float:
        """Between two things that the user of the stream got to see."""
        times = [self.started_at, *self.heard_at]
        return max((late - early for early, late in pairwise(times)), default=0)

    def answer(self) -> Answer:
        answer = Answer({}, {}, {})
        for piece in self.pieces:
            answer.token_ids.setdefault(piece.choice, []).extend(piece.token_ids)
            answer.text[piece.choice] = answer.text.get(piece.choice, "") + piece.text
            answer.finish_reason[piece.choice] = piece.finish_reason
        return answer


@dataclass(slots=True)
class WireRecord:
    """Every message of a request as a client saw it that repairs nothing.

    Attributes:
        published: how often the request was; from the second time on its stream may come again.
        messages: when each came, and what it said.
    """

    name: str
    request_id: str
    started_at: float
    published: int = 0
    messages: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def ends(self) -> list[Mapping[str, Any]]:
        return [message for _, message in self.messages if message.get("done")]

    @property
    def accepted(self) -> bool:
        return any(message.get("status") == "accepted" for _, message in self.messages)

    @property
    def last_at(self) -> float:
        return self.messages[-1][0] if self.messages else self.started_at

    @property
    def ended_at(self) -> float:
        return self.last_at

    @property
    def last_token_at(self) -> float | None:
        return max((at for at, message in self.messages if "index" in message), default=None)

    @property
    def end(self) -> str:
        """`done`, the code of an error, or `none`."""
        if not self.ends:
            return "none"
        return str(self.ends[0]["error"]["code"]) if "error" in self.ends[0] else DONE


def recorded(*pieces: Piece, end: str | None = DONE) -> Record:
    """A stream of just that."""
    record = Record("one")
    for piece in pieces:
        record.take(piece)
    if end is not None:
        record.finish(end)
    return record


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Where two lists part; None where they are equal."""
    for position, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
