"""The promises of the wire (docs/wire.md), judged from what clients saw. Pure functions over
records; nothing of the code that is judged is used here.

| promise | broken by |
|---|---|
| end | no end within the limit; a second end, or tokens after the end, of the same attempt |
| success | an accepted request that ends in an error (as a poison: unless two engines were ended) |
| tokens | one that is missing, or comes twice, in what the client library gives |
| answer | tokens, text or reasons to stop that are not those of the undisturbed run |
| attempt | one attempt told by two workers: what is old could no longer be told from what is new |
| order | a turn of a session that begins before the one before has ended |
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.faults.answers import DONE, Answer, Record, first_difference

_POISON = "request_crashes_engine"
_ENDS_ENGINES = ("kill an engine", "stop an engine")
_MOST_OF_ONE = 3
"""What breaks for one request, breaks for each of its messages."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and by what."""

    promise: str
    request: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.request}: {self.what}"


@dataclass(frozen=True, slots=True)
class Strike:
    """What happened to the cluster, and when (seconds of the monotonic clock).

    Attributes:
        loses_messages: what was on its way to clients may be lost for ever.
    """

    kind: str
    victims: tuple[str, ...]
    at: float
    until: float
    loses_messages: bool = False


@dataclass(slots=True)
class WireRecord:
    """Every message of a request that a client saw who repairs nothing.

    Attributes:
        published: how often it was; from the second time on its stream may come once more.
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


def judge_stream(record: Record, truth: Answer, strikes: Iterable[Strike] = ()) -> list[Violation]:
    """What the client library promises its user."""
    found = [Violation(_promise_of(broken), record.name, broken) for broken in record.broken]
    if record.end is None:
        if not record.broken:
            found.append(Violation("end", record.name, "there is none"))
    elif record.end == _POISON and _may_be_poison(record.started_at, record.ended_at, strikes):
        pass
    elif record.end != DONE:
        found.append(Violation("success", record.name, f"it ended with {record.end}"))
    elif not record.broken:
        found += _compare(record.name, record.answer(), truth)
    return found


def _may_be_poison(began_at: float, ended_at: float, strikes: Iterable[Strike]) -> bool:
    """Whether two engines were ended while a request was served: which of those that were there
    did that nobody can tell, and what two engines ended over is not tried a third time."""
    ended = [each for each in strikes if each.kind in _ENDS_ENGINES]
    return sum(each.at <= ended_at and each.until >= began_at for each in ended) >= 2


def _promise_of(broken: str) -> str:
    return "tokens" if "token" in broken and "after the end" not in broken else "end"


def _compare(name: str, answer: Answer, truth: Answer) -> list[Violation]:
    found = []
    for choice in sorted({*answer.token_ids, *truth.token_ids}):
        mine, theirs = answer.token_ids.get(choice, []), truth.token_ids.get(choice, [])
        if (place := first_difference(mine, theirs)) is not None:
            what = f"choice {choice} differs from token {place} on: {mine[place : place + 5]}"
            found.append(
                Violation("answer", name, f"{what} instead of {theirs[place : place + 5]}")
            )
    if not found and answer != truth:
        found.append(Violation("answer", name, "its text or its reasons to stop differ"))
    return found


def judge_wire(
    record: WireRecord, truth: Answer, strikes: Iterable[Strike], slack_s: float
) -> list[Violation]:
    """What is promised to a client that only listens.

    A gap is none of its business: who repairs nothing lacks what a dead worker had not sent. An end
    is missing only where at most one thing happened meanwhile, and nothing that loses messages.
    """
    found: list[Violation] = []

    def broken(promise: str, what: str) -> None:
        found.append(Violation(promise, f"{record.name} ({record.request_id})", what))

    around = [
        strike
        for strike in strikes
        if strike.at <= record.last_at + slack_s and strike.until >= record.started_at - slack_s
    ]
    is_sure = len(around) <= 1 and not any(strike.loses_messages for strike in around)
    if not record.ends and record.accepted and is_sure:
        broken("end", "there is none")
    ends = Counter(int(end["attempt"]) for end in record.ends)
    twice = [attempt for attempt, count in ends.items() if count > 1]
    once = record.published <= 1
    if twice and once and not any(strike.loses_messages for strike in around):
        broken("end", f"there are several of attempts {twice}")
    for end in record.ends[:1]:
        if "error" in end and record.accepted:
            is_poison = end["error"].get("code") == _POISON
            if not (is_poison and _may_be_poison(record.started_at, record.last_at, around)):
                broken("success", f"it ended with {end['error']}")
    owner: dict[int, str] = {}
    ended: set[int] = set()
    for _, message in record.messages:
        attempt, worker = int(message.get("attempt", 0)), message.get("worker")
        if worker is not None and owner.setdefault(attempt, worker) != worker:
            broken("attempt", f"{attempt} is told by {owner[attempt]} and by {worker}")
        if "index" in message:
            if attempt in ended and once:
                broken("end", f"tokens from {message['index']} on came after it")
            elif what := _wrong_piece(message, truth):
                broken("answer", what)
        if message.get("done"):
            ended.add(attempt)
    return found[:_MOST_OF_ONE]


def stale_messages(record: WireRecord) -> int:
    """How many messages came that a client drops: of an attempt that another one has replaced, or
    after the end. What is late is no fault; that it is told as old is the promise."""
    highest, ended, count = -1, False, 0
    for _, message in record.messages:
        attempt = int(message.get("attempt", 0))
        count += ended or attempt < highest
        highest = max(highest, attempt)
        ended = ended or bool(message.get("done"))
    return count


def _wrong_piece(message: Mapping[str, Any], truth: Answer) -> str | None:
    first, ids = int(message["index"]), list(message["token_ids"])
    rest = truth.token_ids.get(int(message["choice"]), [])[first:]
    if rest[: len(ids)] == ids:
        return None
    teller = f"attempt {message['attempt']} at {message['worker']}"
    return f"tokens of {teller} from {first} on are {ids[:5]}, not {rest[:5]}"


def judge_order(turns: list[Record], strikes: Iterable[Strike] = ()) -> list[Violation]:
    """Of one session, in the order in which they were sent.

    Where messages were lost the end of a turn may be one that was said again, after the next one
    had begun.
    """
    losses = [strike for strike in strikes if strike.loses_messages]
    found = []
    for before, after in pairwise(turns):
        if not after.pieces or before.end is None:
            continue
        if after.heard_at[0] < before.ended_at:
            if any(s.at <= before.ended_at and s.until >= before.started_at for s in losses):
                continue
            early_s = before.ended_at - after.heard_at[0]
            what = f"it began {early_s:.3f} s before {before.name} had ended"
            found.append(Violation("order", after.name, what))
    return found
