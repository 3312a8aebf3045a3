"""Which term a leader begins. Pure functions: terms come from the record in JetStream; what workers
and controllers say counts only where the record is lost, and one of them alone moves nothing."""

from collections.abc import Iterable, Sequence

from shared.messages.base import MAX_TERM

PLAUSIBLE_TERM = MAX_TERM // 2
"""Terms from here on are never followed, whoever tells them, the record too: workers that were
claimed in the highest term of all could be claimed by no other leader."""


def next_term(record: int | None, known: Iterable[int]) -> int:
    """Return the term of a controller that takes over.

    Args:
        record: the term of the stored record; None if there is none.
        known: where the record is missing or implausible: the terms that this controller and the
            others know.
    """
    if record is not None and record < PLAUSIBLE_TERM:
        return record + 1
    return max((term for term in known if term < PLAUSIBLE_TERM), default=0) + 1


def term_of_most(term: int, refused: Sequence[int], workers: int) -> int | None:
    """Return a later term for a leader whose claims most workers refuse: the lowest that at most
    half of them refuse. None if most workers do not refuse this one, or there is no such term.

    Args:
        term: of the leader.
        refused: the terms in which other leaders claimed the workers that refuse.
        workers: the number of all workers.
    """
    too_many = len(refused) - workers // 2
    if too_many <= 0:
        return None
    later = sorted(refused)[too_many - 1] + 1
    return later if term < later <= PLAUSIBLE_TERM else None
