"""The promises of the wire (docs/wire.md), judged from evidence. Pure functions; nothing of the
code that is judged is used here.

| promise | broken by |
|---|---|
| end | no end within the limit; a second end, or tokens after the end, of the same attempt |
| success | an accepted request that ends in an error (unless enough engines or workers were lost) |
| tokens | one that is missing, or comes twice, in what the client library gives |
| answer | tokens, text or reasons to stop that are not those of the undisturbed run |
| attempt | one attempt told by two workers: what is old could no longer be told from what is new |
| order | a turn of a session that begins before the one before has ended |
| leak | requests, tasks, descriptors, threads or memory that stay when all is over |
| recovery | a process that is not ready again in time |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.faults.evidence import Evidence, Injection, Observation
from tests.faults.records import DONE, Answer, Record, WireRecord, first_difference

_POISON = "request_crashes_engine"
_ENDS_ENGINES = ("kill an engine", "stop an engine")
_ENDS_ATTEMPTS = (
    *_ENDS_ENGINES, "kill a worker", "a worker sleeps", "a worker is cut off",
    "a worker's connection ends", "kill a controller and a worker",
    "kill a controller, then a worker",
)  # fmt: skip
_LOST = ("worker_lost", "engine_crashed")
_MOST_ATTEMPTS = 3
_MOST_MIGRATIONS = 3
"""The limits of a cluster: attempts before the first token, migrations without a new token."""
_MOST_OF_ONE = 3
"""What breaks for one request, breaks for each of its messages."""
_WIRE_SLACK_S = 6.0
_SPARE_TASKS = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and by what."""

    promise: str
    request: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.request}: {self.what}"


def judged(evidence: Evidence) -> list[Violation]:
    """Every promise that was broken."""
    injections = evidence.injections
    found = [Violation("recovery", "the cluster", problem) for problem in evidence.problems]
    for record, truth in evidence.streams:
        found += judge_stream(record, truth, injections)
    for wire, truth in evidence.wire:
        found += judge_wire(wire, truth, injections)
    by_name = {record.name: record for record, _ in evidence.streams}
    for session in evidence.sessions:
        found += judge_order([by_name[name] for name in session], injections)
    if evidence.before is not None and evidence.after is not None:
        found += judge_leaks(evidence.before, evidence.after)
    return found


def excerpt(evidence: Evidence, violations: Iterable[Violation], *, most: int) -> Evidence:
    """So much of it that the same promises are found broken: of each promise, and of the sound
    streams of each kind, the shortest ones, `most` of them."""
    length = {record.name: record.tokens for record, _ in evidence.streams}
    length |= {record.request_id: len(record.messages) for record, _ in evidence.wire}
    shortest = sorted(length, key=lambda name: length[name])
    about: dict[str, list[str]] = {}
    for violation in violations:
        named = [name for name in shortest if name in violation.request]
        about.setdefault(violation.promise, []).extend(named)
    broken = {name for names in about.values() for name in names}
    kept = {name for names in about.values() for name in sorted(names, key=shortest.index)[:most]}
    for records in (
        [r.name for r, _ in evidence.streams],
        [r.request_id for r, _ in evidence.wire],
    ):
        sound = [name for name in shortest if name in set(records) - broken]
        kept.update(sound[:most])
    sessions = [turns for turns in evidence.sessions if not broken.isdisjoint(turns)]
    sessions = sessions or evidence.sessions[:1]
    return evidence.only({*kept, *(name for turns in sessions[:most] for name in turns)})


def judge_stream(
    record: Record, truth: Answer, injections: Iterable[Injection] = ()
) -> list[Violation]:
    """What the client library promises its user."""
    found = [Violation(_promise_of(broken), record.name, broken) for broken in record.broken]
    if record.end is None:
        if not record.broken:
            found.append(Violation("end", record.name, "there is none"))
    elif record.end == _POISON and _may_be_poison(record.started_at, record.ended_at, injections):
        pass
    elif record.end in _LOST and _may_be_lost(record, injections):
        pass
    elif record.end != DONE:
        found.append(Violation("success", record.name, f"it ended with {record.end}"))
    elif not record.broken:
        found += _compare(record.name, record.answer(), truth)
    return found


def _may_be_poison(began_at: float, ended_at: float, injections: Iterable[Injection]) -> bool:
    """Whether two engines were ended while a request was served: which of those that were there
    did that nobody can tell, and what two engines ended over is not tried a third time."""
    ended = [each for each in injections if each.kind in _ENDS_ENGINES]
    return sum(each.at <= ended_at and each.until >= began_at for each in ended) >= 2


def _may_be_lost(record: Record | WireRecord, injections: Iterable[Injection]) -> bool:
    """Whether as many faults hit workers since the last token as a cluster tries workers for a
    request that adds none: it may be what ends them."""
    begun = record.last_token_at is not None
    since = record.last_token_at if record.last_token_at is not None else record.started_at
    hit = [each for each in injections if each.kind in _ENDS_ATTEMPTS]
    count = sum(each.at <= record.ended_at and each.until >= since for each in hit)
    return count >= (_MOST_MIGRATIONS + 1 if begun else _MOST_ATTEMPTS)


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
    record: WireRecord,
    truth: Answer,
    injections: Iterable[Injection],
    slack_s: float = _WIRE_SLACK_S,
) -> list[Violation]:
    """What is promised to a client that only listens.

    A gap is none of its business: who repairs nothing lacks what a dead worker had not sent. An end
    is missing only where at most one thing happened meanwhile, and nothing that loses messages.
    """
    found: list[Violation] = []

    def broken(promise: str, what: str) -> None:
        found.append(Violation(promise, f"{record.name} ({record.request_id})", what))

    around = [
        each
        for each in injections
        if each.at <= record.last_at + slack_s and each.until >= record.started_at - slack_s
    ]
    is_sure = len(around) <= 1 and not any(each.loses_messages for each in around)
    if not record.ends and record.accepted and is_sure:
        broken("end", "there is none")
    ends = Counter(int(end["attempt"]) for end in record.ends)
    twice = [attempt for attempt, count in ends.items() if count > 1]
    once = record.published <= 1
    if twice and once and not any(each.loses_messages for each in around):
        broken("end", f"there are several of attempts {twice}")
    for end in record.ends[:1]:
        if "error" in end and record.accepted:
            code = end["error"].get("code")
            is_poison = code == _POISON
            is_poison = is_poison and _may_be_poison(record.started_at, record.last_at, around)
            if not (is_poison or (code in _LOST and _may_be_lost(record, around))):
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


def judge_order(turns: Sequence[Record], injections: Iterable[Injection] = ()) -> list[Violation]:
    """Of one session, in the order in which they were sent.

    Where messages were lost the end of a turn may be one that was said again, after the next one
    had begun.
    """
    losses = [each for each in injections if each.loses_messages]
    found = []
    for before, after in pairwise(turns):
        if not after.pieces or before.end is None:
            continue
        if after.heard_at[0] < before.ended_at:
            if any(e.at <= before.ended_at and e.until >= before.started_at for e in losses):
                continue
            early_s = before.ended_at - after.heard_at[0]
            what = f"it began {early_s:.3f} s before {before.name} had ended"
            found.append(Violation("order", after.name, what))
    return found


def judge_leaks(before: Observation, after: Observation) -> list[Violation]:
    """What is left of ended requests, and what has grown."""
    left = [
        (name, f"{count} requests are left") for name, count in after.requests.items() if count > 0
    ]
    left += [
        (name, f"asyncio tasks from {was} to {after.tasks[name]}")
        for name, was in before.tasks.items()
        if after.tasks.get(name, 0) > was + _SPARE_TASKS
    ]
    for name, held in before.footprints.items():
        if name not in after.footprints:
            left.append((name, "it is not there"))
        else:
            left += [(name, grown) for grown in after.footprints[name].grown_beyond(held)]
    return [Violation("leak", *each) for each in left]
